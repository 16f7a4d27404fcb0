"""One Ray instance on this machine for all tests of the folder, and clusters of several raylets; all are removed."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

import pytest

# Keep Ray from writing to the user's home directory and from sending usage statistics.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_TRAIN_METRICS_ENABLED"] = "0"
# By default Ray's workers yield to all other processes; they then take minutes to start during other tests.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - the name that Ray reads

WITHIN = 120.0  # seconds


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _of_session(folder):
    """Return processes that have the session's folder among their arguments, or whose parent does."""
    found, parents = set(), {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if folder.encode() in command:
                    found.add(int(entry.name))
    found |= {pid for pid, parent in parents.items() if parent in found}
    return found - {os.getpid()}


@contextlib.contextmanager
def _nothing_stays(stop):
    """Yield a folder for Ray's session; check that ``stop`` ends all its processes, then remove the folder."""
    folder = tempfile.mkdtemp(prefix="hvd-ray-", dir="/tmp")  # short, because socket paths are limited
    try:
        yield folder
    finally:
        pids = _of_session(folder)
        stop()
        until = time.monotonic() + WITHIN
        while any(map(_alive, pids)) and time.monotonic() < until:
            time.sleep(0.1)
        left = sorted(filter(_alive, pids))
        shutil.rmtree(folder, ignore_errors=True)
        assert pids, "no process of Ray has been there"
        assert left == [], f"processes of Ray are left: {left}"


def _start(folder, start, stop):
    """Call ``start``, again if Ray's processes did not start within Ray's limit of 30 s, as on a busy machine."""
    for last in (False, False, False, True):
        try:
            start()
            break
        except Exception:
            stop()
            for pid in _of_session(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if last:
                raise
    os.environ.pop("PYTHONBREAKPOINT", None)  # Ray's debugger would affect later tests in this process


def _init(**options):
    import ray

    ray.init(log_to_driver=False, logging_level="ERROR", **options)


class Rays:
    """The single Ray instance of this process: this machine as one node, or a cluster of several."""

    def __init__(self):
        self._running = contextlib.ExitStack()
        self._local = False

    def local(self):
        """Return the ray module after starting one node of 6 CPUs and 2 GPUs; reused by later tests."""
        import ray

        if not self._local:
            self.end()
            folder = self._running.enter_context(_nothing_stays(ray.shutdown))
            options = {
                "num_cpus": 6,
                "num_gpus": 2,  # only for scheduling; no GPU is needed
                "include_dashboard": False,
                "object_store_memory": 200 << 20,
                "_temp_dir": folder,
            }
            _start(folder, lambda: _init(**options), ray.shutdown)
            self._local = True
        return ray

    @contextlib.contextmanager
    def nodes(self):
        """A cluster whose head has one CPU."""
        import ray
        from ray.cluster_utils import Cluster

        self.end()
        added = []

        def stop():
            ray.shutdown()
            while added:
                added.pop().shutdown()

        with _nothing_stays(stop) as folder:
            head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 << 20, "temp_dir": folder}

            def start():
                added.append(Cluster(initialize_head=True, head_node_args=head))
                _init(address=added[0].address)

            _start(folder, start, stop)
            yield Nodes(added[0])

    def end(self):
        self._local = False
        self._running.close()


class Nodes:
    """Changes that a test makes to a cluster."""

    def __init__(self, cluster):
        self._cluster = cluster

    def add(self, cpus):
        """Add a raylet."""
        return self._cluster.add_node(num_cpus=cpus, object_store_memory=100 << 20)

    @staticmethod
    def kill(node):
        """Kill the node's raylet, and nothing else."""
        os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)


@pytest.fixture(scope="package")
def rays():
    pytest.importorskip("ray")
    rays = Rays()
    yield rays
    rays.end()


@pytest.fixture(scope="module")
def local(rays):
    return rays.local()


@pytest.fixture
def nodes(rays):
    with rays.nodes() as nodes:
        yield nodes
