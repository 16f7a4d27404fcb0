"""Modules planted in the current directory are not imported by Horovod's programs.

Each program, except the user's own script, is started in a directory full of modules that record their import.
"""

import subprocess
import sys

import pytest

from horovod.common.contract import boot
from horovod.runner.remote import ssh
from tests.runner.launching import LIMIT, ROOT, marked_environment, processes_with

# Third-party modules that Horovod imports or looks for, the package itself, and the whole standard library.
NAMES = (
    *("cloudpickle", "zmq", "msgspec", "yaml", "numpy", "torch", "mpi4py", "matplotlib", "horovod", "tensorflow"),
    *sorted(sys.stdlib_module_names),
)
PLANTED = """
import os, sys
with open({log!r}, "a") as file:
    print(__name__, "in", *sys.orig_argv, file=file)
raise ImportError("a planted module")
"""
LAUNCH = "from horovod.runner.launch import main; sys.exit(main())"


@pytest.fixture
def planted(tmp_path):
    """Return (a directory of planted modules, the file that records their imports, a safe directory beside it)."""
    log, place, safe = tmp_path / "log", tmp_path / "planted", tmp_path / "safe"
    place.mkdir()
    safe.mkdir()
    for name in NAMES:
        (place / f"{name}.py").write_text(PLANTED.format(log=str(log)))
    return place, log, safe


def run(planted, code, *arguments, **variables):
    """Run a user's program from the safe directory in the planted one; check that no planted module ran."""
    place, log, safe = planted
    script = safe / "program.py"
    script.write_text(f"import sys; sys.path.append({str(ROOT)!r})\n{code}\n")
    env = marked_environment({"PYTHONPATH": None, "HOROVOD_CALIBRATE": "0", **variables})
    done = subprocess.run(
        [sys.executable, str(script), *arguments], cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT
    )
    assert not log.exists(), log.read_text()
    assert processes_with(env["HVD_TEST_MARK"]) == []
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


FUNCTION = """
import horovod
def work():
    import os
    from horovod.common.basics import HorovodBasics
    hvd = HorovodBasics("torch")
    hvd.init()
    return hvd.rank(), hvd.size()
if __name__ == "__main__":
    print(horovod.run(work, num_proc={np}, use_mpi={mpi}))
"""


def test_horovod_run(planted):
    assert run(planted, FUNCTION.format(np=2, mpi=False)) == "[(0, 2), (1, 2)]\n"


def test_horovodrun(planted):
    """Launcher, agent and guard; the user's script is in another directory."""
    worker = planted[2] / "worker.py"
    worker.write_text("print('trained')\n")
    assert run(planted, LAUNCH, "-np", "2", sys.executable, str(worker)).count("trained") == 2


def directly(planted, command, stdin=subprocess.DEVNULL, **variables):
    """Run one of Horovod's programs in the planted directory; return its output. No planted module may have run."""
    place, log, _ = planted
    env = marked_environment({"PYTHONPATH": None, **variables})
    done = subprocess.run(command, cwd=place, env=env, stdin=stdin, capture_output=True, timeout=LIMIT)
    assert not log.exists(), log.read_text()
    return done.returncode, (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("program", ["worker", "launcher"])
def test_the_programs_of_pods(planted, program):
    """A pod's working directory is often a volume that others can write to, and these programs hold the job's token."""
    argv = {"worker": ["--launcher", "x", "--port", "1"], "launcher": ["--port", "1", "--", "--", "true"]}[program]
    command = [sys.executable, *boot.arguments_elsewhere(f"horovod.runner.kubernetes.{program}"), *argv]
    code, output = directly(planted, command, HOROVOD_POD_TOKEN="x" * 32)
    assert code != 0
    assert {"worker": "got ''", "launcher": "-np is missing"}[program] in output


@pytest.mark.parametrize("switch", [{}, {"PYTHONSAFEPATH": "1"}])
def test_an_agent(planted, switch):
    """Started as by ssh, in the directory where the user's login begins."""
    place, log, _ = planted
    env = marked_environment({"PYTHONPATH": None, **switch})
    done = subprocess.run(
        ssh.agent_command(), cwd=place, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT
    )
    assert b"HOROVOD AGENT" in done.stdout
    assert not log.exists(), log.read_text()


@pytest.mark.heavy
def test_modules_of_the_launching_program_are_found(tmp_path):
    """Modules beside its script come first; the current directory is searched only where that program would."""
    (tmp_path / "mine.py").write_text("def who(): return __file__\n")
    (tmp_path / "pytest.py").write_text("def who(): return __file__\n")
    script = (
        "import horovod, mine, pytest\n"
        "def work(): return mine.who(), pytest.who()\n"
        "if __name__ == '__main__': print(horovod.run(work, num_proc=1))\n"
    )
    (tmp_path / "program.py").write_text(script)
    own, shadow = str(tmp_path / "mine.py"), str(tmp_path / "pytest.py")
    env = marked_environment()
    for argv, place in (
        ([str(tmp_path / "program.py")], "/"),
        (["-m", "program"], tmp_path),
        (["-c", script], tmp_path),
    ):
        done = subprocess.run(
            [sys.executable, *argv], cwd=place, env=env, capture_output=True, text=True, timeout=LIMIT
        )
        assert done.stdout == f"{[(own, shadow)]}\n", done.stderr
