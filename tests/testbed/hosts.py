"""Hosts made of namespaces.

Each has its own network, host name, processes, mounts, /dev/shm, home directory, boot id and, except the desk, an
ssh server that accepts the test user's key. They share /tmp, the repository and the Python environment, as hosts
with a network file system do.

    cluster.host(1) ... cluster.host(N)    host1 10.77.0.1 fd77::1, ...
    cluster.desk                           a machine to start jobs from; accepts no logins

Nothing on the machine itself is changed; host_init.py and network.py explain why nothing can be left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod.runner.base import linux
from tests.testbed.network import BedError, enter, find_program, hosts_file, ip, try_network

ROOT = Path(__file__).resolve().parents[2]
HOME = "/run/home"
PROGRAMS = ("ip", "nft", "nsenter", "sshd", "ssh", "ssh-keygen", "unshare")
SSHD_SESSIONS = ("sshd: ", "sshd-session: ")  # prefixes of their command lines; the second since OpenSSH 9.8
NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid")
STARTUP_LIMIT = 60.0  # seconds for a host to come up; usually a tenth of one
SSHD_CONFIG = f"""
Port 22
Port 2222
HostKey /run/bed/host_key
AuthorizedKeysFile {HOME}/.ssh/authorized_keys
StrictModes no
UsePAM no
PidFile none
PrintMotd no
AcceptEnv LANG LC_*
SetEnv TMPDIR=/var/tmp
PermitRootLogin prohibit-password
MaxStartups 100
"""


def obstacle() -> str | None:
    """Return why this machine cannot have such hosts; None if it can."""
    if os.geteuid() != 0:
        return "hosts made of namespaces need root"
    missing = [name for name in PROGRAMS if find_program(name) is None]
    if missing:
        return f"hosts made of namespaces need {', '.join(missing)} (scripts/install-system-packages.sh)"
    trial = ["unshare", *NAMESPACES, "--fork", "--propagation", "unchanged", "true"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=STARTUP_LIMIT)
    if done.returncode:
        return f"namespaces are not permitted here: {done.stderr.strip()}"
    try:
        try_network()
    except BedError as error:
        return f"this machine's kernel cannot connect hosts made of namespaces: {error}"
    return None


def make_key(comment: str) -> tuple[str, str]:
    """Create an ssh key; return the private key file's content and the public key's line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key")
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path],
            check=True,
            timeout=STARTUP_LIMIT,
        )
        return path.read_text(), path.with_suffix(".pub").read_text()


class HostProcess(subprocess.Popen):  # type: ignore[type-arg]
    """A program that runs on a host.

    Popen's own process is nsenter, which waits for the program and exits with its status. `target` is the program's
    pid in this machine's pid namespace.
    """

    @property
    def target(self) -> int:
        deadline = time.monotonic() + STARTUP_LIMIT
        while not (below := linux.descendants(self.pid)):
            if self.poll() is not None:
                raise BedError(f"{self.args} has ended with code {self.returncode}")
            if time.monotonic() > deadline:
                raise BedError(f"{self.args} has not started")
            time.sleep(0.005)
        return below[0]

    def send(self, number: int) -> None:
        """Send a signal to the program."""
        linux.send_signal(self.target, number)


class Host:
    """One host. Its processes have pids in this machine's namespace, so os.kill and /proc of the test reach them."""

    def __init__(self, name: str, number: int, config: Mapping[str, object]) -> None:
        self.name = name
        self.number = number
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number:x}"
        self._process = subprocess.Popen(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "--propagation", "unchanged", sys.executable, "-I"]
            + [str(Path(__file__).with_name("host_init.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=linux.dying_with(os.getpid()),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(config).encode() + b"\n")
        self._process.stdin.flush()
        self._serves = bool(config["sshd"])
        self._quiet: set[int] = set()
        self.pid = 0

    def wait_until_up(self) -> None:
        """Wait until the host has its mounts and its ssh server listens."""
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], STARTUP_LIMIT)
        line = self._process.stdout.readline().decode().strip() if readable else "no answer"
        if line != "ready":
            raise BedError(f"{self.name} does not start: {line or 'its first process has ended'}")
        self.pid = linux.descendants(self._process.pid)[0]
        deadline = time.monotonic() + STARTUP_LIMIT
        while self._serves and 22 not in (port for _, port in self.listening(all_of_them=True)):
            if time.monotonic() > deadline:
                raise BedError(f"sshd on {self.name} does not listen: {self.path('/run/bed/sshd.log').read_text()}")
            time.sleep(0.01)
        self._quiet = {self.pid, *linux.descendants(self.pid)}

    # Running programs

    def environment(self) -> dict[str, str]:
        """Return the environment of a login on this host, with the test's own search paths."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SSH_", "HOROVOD_", "XDG_"))}
        path = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}:/usr/sbin:/sbin"
        fixed = {"HOME": HOME, "USER": "root", "LOGNAME": "root", "PATH": path, "HOROVOD_CALIBRATE": "0"}
        fixed["TMPDIR"] = "/var/tmp"  # private to the host, so that leftover files are found
        return {**kept, **fixed, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))}

    def popen(
        self,
        command: Sequence[str | Path] | str,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str | Path | None = None,
        **options: object,
    ) -> HostProcess:
        """Start a command (a str is run by bash) in a new session.

        `env` is added to environment(); None removes a variable. `cwd` is the home directory unless given. Further
        options are Popen's.
        """
        line = ["bash", "-c", command] if isinstance(command, str) else [str(argument) for argument in command]
        if cwd is not None:
            line = ["env", "-C", str(cwd), "--", *line]
        merged = {**self.environment(), **(env or {})}
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return HostProcess(
            enter(self.pid, *NAMESPACES, "--root", "--wd") + line,
            env={name: value for name, value in merged.items() if value is not None},
            start_new_session=True,
            **options,  # type: ignore[call-overload]
        )

    def run(
        self, command: Sequence[str | Path] | str, *, timeout: float = 120, input: str | None = None, **options: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with output as text; options are popen's.

        Raises subprocess.TimeoutExpired after `timeout` seconds, once the command has been killed.
        """
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.popen(command, text=True, errors="surrogateescape", **options)
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            for pid in linux.descendants(process.pid):
                linux.send_signal(pid, signal.SIGKILL)
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    # Inspecting a host from outside

    def path(self, path: str | Path) -> Path:
        """Return the path by which this machine accesses a file of the host."""
        return Path(f"/proc/{self.pid}/root/{str(path).lstrip('/')}")

    def processes(self) -> dict[int, str]:
        """Return the command line of every process except the host's init and ssh server; ssh sessions are included."""
        own = os.readlink(f"/proc/{self.pid}/ns/pid")
        found = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in self._quiet:
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{name}/ns/pid") == own and not _is_zombie(int(name)):
                        line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(name)] = line.decode(errors="surrogateescape").strip()
        return found

    def listening(self, all_of_them: bool = False) -> list[tuple[str, int]]:
        """Return (local address as in /proc/net/tcp, port) of every listening TCP socket except the ssh server's."""
        found = []
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(FileNotFoundError):
                for line in Path(f"/proc/{self.pid}/net/{table}").read_text().splitlines()[1:]:
                    fields = line.split()
                    address, _, port = fields[1].rpartition(":")
                    if fields[3] == "0A" and (all_of_them or int(port, 16) not in (22, 2222)):
                        found.append((address, int(port, 16)))
        return found

    def shm(self) -> list[str]:
        """Return the contents of /dev/shm."""
        return sorted(os.listdir(self.path("/dev/shm")))

    def files(self) -> set[str]:
        """Return all files and sockets in the host's private directories: home, /run, /dev/shm, /var/tmp."""
        found = set()
        for top in ("/run", "/dev/shm", "/var/tmp"):
            base = self.path(top)
            for folder, _, names in os.walk(base):
                found |= {os.path.join(top, os.path.relpath(folder, base), name).replace("/./", "/") for name in names}
        return found

    # Ending a host

    def kill_all(self) -> None:
        """End every process of jobs on this host."""
        deadline = time.monotonic() + STARTUP_LIMIT
        while left := self.processes():
            for pid in left:
                linux.send_signal(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise BedError(f"processes on {self.name} that SIGKILL did not end: {left}")
            time.sleep(0.01)

    def close(self) -> None:
        """Shut the host down; the kernel kills all its processes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait(60)
        self._process.stdout.close()


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX"


def start_hosts(names: Mapping[str, int], shm: str) -> list[Host]:
    """Start hosts (number by name; 254 has no ssh server) with each other's host keys, but without network yet."""
    user_key, user_public = make_key("test user")
    host_keys = {name: make_key(name) for name, number in names.items() if number != 254}
    known = []
    for name, (_, public) in host_keys.items():
        number = names[name]
        argv = [name, f"10.77.0.{number}", f"fd77::{number:x}"]
        known.append(f"{','.join(argv + [f'[{w}]:2222' for w in argv])} {public}")
    hosts = []
    for name, number in names.items():
        private = host_keys.get(name, ("", ""))[0]
        files = [
            (f"{HOME}/.ssh/id_ed25519", user_key, 0o600),
            (f"{HOME}/.ssh/known_hosts", "".join(known), 0o600),
            (f"{HOME}/.ssh/authorized_keys", user_public, 0o600),
            ("/run/bed/host_key", private, 0o600),
            ("/run/bed/sshd_config", SSHD_CONFIG, 0o644),
        ]
        config = {
            "name": name,
            "home": HOME,
            "shm": shm,
            "hosts": hosts_file({n: f"10.77.0.{k}" for n, k in names.items()}),
            "boot_id": str(uuid.uuid4()),
            "files": files,
            "sshd": find_program("sshd") if private else "",
        }
        hosts.append(Host(name, number, config))
    try:
        for host in hosts:
            host.wait_until_up()
            ip(host.pid, ["link set lo up"])
    except BaseException:
        for host in hosts:
            host.close()
        raise
    return hosts
