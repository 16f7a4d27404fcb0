"""`--gpus-per-worker`: each worker sees GPUs of its own, of those that its host has. With a simulated NVML."""

import shlex
import sys

import pytest

from horovod.runner.base.errors import LaunchError
from horovod.runner.command import cli
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


def test_each_worker_gets_its_own(library, tmp_path):
    done = job(library, "-np", "2", "--gpus-per-worker", "2")
    assert (done.code, done.err) == (0, "")
    assert sorted(done.out.splitlines()) == ["[0]<stdout>:0,1 PCI_BUS_ID", "[1]<stdout>:2,3 PCI_BUS_ID"]
    # Of those that the launcher's user may use; what that one means by the numbers stays as it is.
    config = tmp_path / "horovod.yaml"
    config.write_text("params:\n  gpus_per_worker: 1\n")
    done = job(library, "-np", "2", "--config-file", str(config), CUDA_VISIBLE_DEVICES="3,1")
    assert sorted(done.out.splitlines()) == ["[0]<stdout>:3 None", "[1]<stdout>:1 None"]
    # Two names of this machine are two hosts; parts of a GPU are given out one by one.
    done = job(library, "-np", "3", "-H", "localhost:2,127.0.0.1:1", gpus="uuid=X,mig=2", HOROVOD_GPUS_PER_WORKER="1")
    assert sorted(done.out.splitlines()) == [
        "[0]<stdout>:MIG-X-0 None",
        "[1]<stdout>:MIG-X-1 None",
        "[2]<stdout>:MIG-X-0 None",
    ]


def test_without_it_all_see_all(library):
    assert job(library, "-np", "1").out == "[0]<stdout>:None None\n"


def test_too_few_end_the_job_before_anything_starts(library):
    done = job(library, "-np", "3", "--gpus-per-worker", "2")
    assert (done.code, done.out) == (1, "")
    assert (
        "--gpus-per-worker 2 for 3 workers needs 6 GPUs on this host, where only 4 GPUs can be used (as NVIDIA's "
        "driver says); start fewer workers there"
    ) in done.err
    done = job(library, "-np", "1", "--gpus-per-worker", "1", SIMNVML_INIT="9")
    assert "no GPU can be used (nvmlInit_v2: Driver Not Loaded (error 9); the kernel module" in done.err
    assert "Traceback" not in done.err


def test_another_host_gives_out_what_it_has(library, tmp_path):
    """By a program in ssh's place, which has a list of its own there."""
    program = tmp_path / "ssh"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '5,4'\n"
        f"os.environ.update(LD_LIBRARY_PATH={library!r}, SIMNVML='a=1;a=1;a=1;a=1;a=1;a=1')\n"
        "os.execvp('sh', ['sh', '-c', sys.argv[-1]])\n"
    )
    program.chmod(0o755)
    path = f"{shlex.quote(str(tmp_path))}:/usr/bin:/bin"
    done = run_job(
        ["-np", "2", "-H", "red.test:2", "--gpus-per-worker", "1", *python(SHOW)],
        environment={"PATH": path, "CUDA_VISIBLE_DEVICES": "0"},
    )
    assert sorted(done.out.splitlines()) == ["[0]<stdout>:5 None", "[1]<stdout>:4 None"], done.err


def test_other_launchers_give_out_gpus_themselves():
    namespace, command = cli.parse(["-np", "1", "--mpi", "--gpus-per-worker", "1", "x"])
    with pytest.raises(LaunchError, match=r"--gpus-per-worker .* is 1, but mpirun and jsrun start the workers"):
        cli.settings(namespace, command, {})
    for wrong in ("-1", "1.5", "many"):
        with pytest.raises(LaunchError, match="expected an integer from 0 to 1024"):
            cli.parse(["-np", "1", "--gpus-per-worker", wrong, "x"])
