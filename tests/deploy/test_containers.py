"""The images of deploy/docker, and jobs in their containers; `make test-containers` builds and tests them."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.podman import inspect, options, podman, run

ROOT = Path(__file__).parents[2]
CPU, SSH, DEVELOPMENT = "horovod:cpu", "horovod:cpu-ssh", "horovod:dev"
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not os.environ.get("HVD_TEST_CONTAINERS"), reason="no images here (make test-containers)"),
]
SUM = """
import socket, torch, horovod.torch as hvd
hvd.init()
total = hvd.allreduce(torch.full((1 << 20,), hvd.rank() + 1.0), op=hvd.Sum)
print("rank", hvd.rank(), "on", socket.gethostname(), "sums", total[-1].item(), flush=True)
"""
FOREVER = """
import numpy as np, horovod.numpy as hvd
hvd.init()
while True:
    hvd.allreduce(np.ones(1000))
    print("on", flush=True)
"""


@pytest.mark.parametrize("image", [CPU, SSH])
def test_images_are_small_unprivileged_and_have_health_checks(image: str) -> None:
    found = inspect(image)
    assert found["Config"]["User"] == "1000:1000"
    assert found["Size"] < 1.6e9
    assert found["Healthcheck"]["Test"][0] == "CMD"
    privileged = run(image, "find", "/opt/horovod", "/workspace", "/home", "-perm", "/6000")
    assert privileged.stdout == ""
    assert "no" in run(image, "sh", "-c", "command -v g++ || echo no").stdout  # build tools are not in the image


HARD = ("--read-only", "--user", "4242:4242", "--cap-drop=all", "--security-opt=no-new-privileges")


@pytest.mark.parametrize("more", [(), ("--read-only-tmpfs=false",)])
def test_a_job_of_any_user_without_write_access(more: tuple[str, ...]) -> None:
    """As with Apptainer, OpenShift and strict Kubernetes policies; only the first provides /tmp."""
    done = run(CPU, "horovodrun", "-np", "2", "python", "-c", SUM, with_=(*HARD, *more))
    assert len(done.stdout.splitlines()) == 2


def test_the_doctor_in_a_default_container() -> None:
    done = run(CPU)
    assert re.search(r"^container +podman", done.stdout, re.MULTILINE)
    assert re.search(
        r"^WARN shared memory: localhost: /dev/shm has 6\d MiB left of 6\d, for one rank$", done.stdout, re.M
    )
    well = run(CPU, with_=("--shm-size", "1g"))
    assert "shared memory" not in well.stdout
    assert " 0 failures\n" in well.stdout


def test_a_container_that_is_stopped_stops_its_job() -> None:
    name = podman("run", "-d", *options(), f"localhost/{CPU}", "horovodrun", "-np", "2", "sleep", "600").stdout.strip()
    try:
        # Signal the ranks: a container's first process ignores signals without a handler, and the launcher
        # may have none yet.
        _until(
            lambda: [line.strip() for line in podman("top", name, "args").stdout.splitlines()].count("sleep 600") == 2
        )
        begin = time.monotonic()
        podman("stop", "--time", "60", name)
        assert time.monotonic() - begin < 50
        assert podman("inspect", name, "--format", "{{.State.ExitCode}}").stdout == "143\n"
        assert "horovodrun: stopped by SIGTERM" in podman("logs", name).stderr
    finally:
        podman("rm", "--force", "--time", "0", name)


# Several containers


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ssh") / "keys"
    subprocess.run([ROOT / "deploy/docker/make-keys", folder], check=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def network() -> Iterator[str]:
    podman("network", "create", "--internal", "hvd-test")
    yield "hvd-test"
    podman("network", "rm", "--force", "hvd-test")


class Workers:
    """Containers with an ssh server each, in one network."""

    def __init__(self, network: str) -> None:
        self._network = network
        self.names: list[str] = []

    def start(self, name: str, keys: Path) -> None:
        more = ("--network", self._network, "--name", name, "--hostname", name, "-v", f"{keys}:/etc/horovod/ssh:ro")
        self.names.append(name)
        podman("run", "-d", *options(*more, "--shm-size", "1g", "--cap-drop=all"), f"localhost/{SSH}")
        check = inspect(SSH)["Healthcheck"]["Test"][1:]
        _until(lambda: podman("exec", name, *check, check=False).returncode == 0)

    def horovodrun(self, *argv: str) -> subprocess.CompletedProcess[str]:
        return podman("exec", self.names[0], "horovodrun", *argv, check=False)


@pytest.fixture
def workers(network: str, keys: Path) -> Iterator[Workers]:
    workers = Workers(network)
    try:
        for name in ("worker1", "worker2"):
            workers.start(name, keys)
        yield workers
    finally:
        for name in workers.names:
            podman("rm", "--force", "--time", "0", name)


def test_a_job_in_two_containers(workers: Workers) -> None:
    done = workers.horovodrun("-np", "4", "-H", "worker1:2,worker2:2", "python", "-c", SUM)
    assert done.returncode == 0, done.stderr
    expected = [f"[{r}]<stdout>:rank {r} on worker{1 + r // 2} sums 10.0" for r in range(4)]
    assert sorted(done.stdout.splitlines()) == expected
    # The server has only its user's rights, and keeps no process of a finished job.
    assert podman("exec", "worker2", "stat", "-c", "%u", "/proc/1").stdout == "1000\n"
    _until(lambda: len(podman("top", "worker2", "args").stdout.splitlines()) == 2)


def test_a_container_that_dies_is_named(workers: Workers) -> None:
    line = "podman exec worker1 horovodrun -np 2 -H worker1:1,worker2:1 python -c"
    command = [*line.split(), FOREVER]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        assert job.stdout.readline().endswith("on\n")
        podman("kill", "worker2")
        _, output = job.communicate(timeout=120)
    finally:
        job.kill()
    assert job.returncode == 1
    assert "horovodrun: host worker2 (rank 1) is lost" in output


def test_workers_without_keys_report_what_to_mount(tmp_path: Path) -> None:
    done = run(SSH, check=False)
    assert done.returncode == 2
    assert (
        "start-sshd: there is no /etc/horovod/ssh/ssh_host_ed25519_key: deploy/docker/make-keys FOLDER" in done.stderr
    )
    tmp_path.chmod(0o700)  # owned by root
    done = run(SSH, check=False, with_=("-v", f"{tmp_path}:/etc/horovod/ssh:ro"))
    assert done.returncode == 2
    expected = (
        "start-sshd: user 1000 may not read /etc/horovod/ssh, which is root (0), mode 700: chown -R 1000 the folder"
    )
    assert expected in done.stderr


# Other parts of deploy


def test_compose(keys: Path) -> None:
    """The file, as podman parses it."""
    tools = Path(os.environ["HVD_TEST_TOOLS"])
    more = f"--podman-run-args={' '.join(options())}"
    command = [str(tools / "bin/podman-compose"), more, "-f", str(ROOT / "deploy/docker/compose.yaml")]
    environ = {**os.environ, "KEYS": str(keys), "PYTHONPATH": str(tools)}

    def compose(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *argv], env=environ, capture_output=True, text=True, timeout=120)

    job = ["horovodrun", "-np", "2", "-H", "worker1:1,worker2:1"]
    try:
        up = compose("up", "-d")
        assert up.returncode == 0, up.stderr
        _until(lambda: compose("exec", "-T", "worker1", *job, "true").returncode == 0)
        done = compose("exec", "-T", "worker1", *job, "python", "-c", SUM)
        assert sorted(done.stdout.splitlines()) == [
            f"[{rank}]<stdout>:rank {rank} on worker{rank + 1} sums 3.0" for rank in range(2)
        ], done.stderr
    finally:
        compose("down", "-t", "1")


def test_the_development_container_can_build(tmp_path: Path) -> None:
    done = run(DEVELOPMENT, "make", "-C", "/clone", "help", with_=("-v", f"{ROOT}:/clone:ro"))
    assert "make test-containers" in done.stdout
    program = 'printf "#include <Python.h>\\nint main() {}" | g++ -x c++ - -o /tmp/a $(python3-config --includes)'
    run(DEVELOPMENT, "sh", "-c", f"{program} && git --version")


def _until(ready: object, seconds: float = 60.0) -> None:
    assert callable(ready)
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it has not come to that"
        time.sleep(0.2)
