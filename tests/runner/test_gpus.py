"""`--gpus-per-worker`: each worker sees its own share of its host's GPUs. With a simulated NVML."""

import os

import pytest

from tests.runner.launching import python, run_job
from tests.simulated.nvml import build

SHOW = "import os; print(*(os.environ.get('CUDA_' + name) for name in ('VISIBLE_DEVICES', 'DEVICE_ORDER')))"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvml")
    build(folder)
    return str(folder)


def job(library, *arguments, gpus="a=1;a=1;a=1;a=1", **environ):
    environment = {"LD_LIBRARY_PATH": library, "SIMNVML": gpus, "CUDA_DEVICE_ORDER": None, **environ}
    return run_job([*arguments, *python(SHOW)], environment=environment)


def test_each_worker_gets_its_own_gpus(library, tmp_path):
    done = job(library, "-np", "2", "--gpus-per-worker", "2")
    assert (done.code, done.err) == (0, "")
    assert sorted(done.out.splitlines()) == ["[0]<stdout>:0,1 PCI_BUS_ID", "[1]<stdout>:2,3 PCI_BUS_ID"]
    # Of the GPUs that the launcher's user may use, numbered as that user sees them; two names of this machine
    # are two hosts.
    config = tmp_path / "horovod.yaml"
    config.write_text("params:\n  gpus_per_worker: 1\n")
    flags = ["-np", "3", "-H", "localhost:2,127.0.0.1:1", "--config-file", str(config)]
    done = job(library, *flags, CUDA_VISIBLE_DEVICES="3,1")
    assert sorted(done.out.splitlines()) == [f"[{rank}]<stdout>:{gpu} None" for rank, gpu in enumerate((3, 1, 3))]


CPUS = "import os; print(sorted(os.sched_getaffinity(0)))"


@pytest.mark.heavy
def test_workers_run_near_their_gpus(library):
    """Each GPU is near one of the CPUs available to this process; local ranks take turns."""
    here = sorted(os.sched_getaffinity(0))
    one, other = here[0], here[-1]
    if other > 63:
        pytest.skip("the simulated NVML tells of 64 CPUs")
    environ = {"LD_LIBRARY_PATH": library, "SIMNVML": f"cpus={1 << one:x};cpus={1 << other:x}"}
    done = run_job(["-np", "3", "--gpu-affinity", *python(CPUS)], environment=environ)
    expected = [f"[{rank}]<stdout>:[{cpu}]" for rank, cpu in enumerate([one, other, one])]
    assert sorted(done.out.splitlines()) == expected, done.err
    done = run_job(["-np", "1", "--gpu-affinity", "true"], environment={**environ, "SIMNVML": ""})
    text = "--gpu-affinity needs a GPU on this host, where none can be used (the driver is there and knows no GPU)"
    assert text in done.err
