"""A Slurm cluster of four nodes on this machine: a controller and four slurmd, all on the loopback interface."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.launchers.programs import environment, run, system

NODES = 4
PROGRAMS = ("slurmctld", "slurmd", "srun", "salloc", "sbatch", "sinfo", "scancel", "munged", "munge")
_STARTUP = 60.0  # seconds; it usually takes two
_MUNGE = Path("/run/munge")  # where libmunge looks
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SchedulerType=sched/backfill
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[4]}] CPUs=4 RealMemory=1000
PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP
"""


def obstacle() -> str | None:
    """Return why this machine cannot have such a cluster; None if it can."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root"
    missing = [name for name in PROGRAMS if system(name) is None]
    return f"a Slurm cluster needs {', '.join(missing)} (scripts/install-system-packages.sh)" if missing else None


class Slurm:
    """A cluster that runs until `close`. `env`: environment for its users."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._daemons: list[subprocess.Popen] = []
        self._made_munge = False
        (folder / "state").mkdir()
        config = folder / "slurm.conf"
        if not os.path.ismount("/sys/fs/cgroup"):  # slurmd would fail while looking for the cgroup plugin
            (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        host = socket.gethostname().split(".")[0]
        config.write_text(_CONFIG.format(folder=folder, host=host, nodes=NODES, ports=_five_ports()))
        self.env = environment(SLURM_CONF=str(config))
        try:
            self._start_munge()
            self._start("slurmctld", "-c", "-D")
            for number in range(1, NODES + 1):
                self._start("slurmd", "-D", "-N", f"n{number}")
            self._wait()
        except BaseException:
            self.close()
            raise

    def run(self, *command: str, **variables: str):
        """Run a Slurm command such as srun, or another program that uses the cluster."""
        return run(command, {**self.env, **variables})

    def close(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(AssertionError, OSError):
            run(["scancel", "--user", "root"], self.env, 20)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        if self._made_munge:
            shutil.rmtree(_MUNGE, ignore_errors=True)

    def _start(self, program: str, *arguments: str) -> None:
        path = system(program)
        assert path is not None
        with open(self._folder / f"{program}-{len(self._daemons)}.out", "wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    [path, *arguments], env=self.env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True,
                )
            )  # fmt: skip

    def _start_munge(self) -> None:
        """Start munge, or use the system's own if it runs."""
        if subprocess.run(["munge", "-n"], capture_output=True, timeout=_STARTUP).returncode == 0:
            return
        self._made_munge = not _MUNGE.exists()
        _MUNGE.mkdir(mode=0o755, exist_ok=True)
        key = self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {name: self._folder / f"munge.{name}" for name in ("log", "pid", "seed")}
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={_MUNGE}/munge.socket.2",
            f"--log-file={files['log']}", f"--pid-file={files['pid']}", f"--seed-file={files['seed']}",
        )  # fmt: skip
        deadline = time.monotonic() + _STARTUP
        while subprocess.run(["munge", "-n"], capture_output=True, timeout=_STARTUP).returncode:
            assert time.monotonic() < deadline, self._outputs()
            time.sleep(0.1)

    def _wait(self) -> None:
        deadline = time.monotonic() + _STARTUP
        while True:
            states = run(["sinfo", "-h", "-N", "-o", "%t"], self.env, _STARTUP).text.split()
            if states == ["idle"] * NODES:
                return
            assert time.monotonic() < deadline, (states, self._outputs())
            time.sleep(0.2)

    def _outputs(self) -> str:
        return "\n".join(f"{path}:\n{path.read_text(errors='replace')[-2000:]}" for path in self._folder.glob("*.out"))


def _five_ports() -> list[int]:
    """Return the first of five consecutive free ports."""
    for first in range(17000, 19000, 5):
        with contextlib.ExitStack() as sockets:
            try:
                for port in range(first, first + 5):
                    sock = sockets.enter_context(socket.socket())
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return list(range(first, first + 5))
    raise AssertionError("no free ports")
