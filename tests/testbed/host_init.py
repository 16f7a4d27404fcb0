"""Process 1 of a host of the test bed: sets up its namespaces to look like a machine, and runs sshd.

`hosts.py` starts it as `python -I host_init.py`, writes one line of JSON to stdin and keeps the pipe open. When the
pipe closes for any reason, the host ends, and the kernel kills everything in it. No file is left, because all
writes go to in-memory file systems that only this host sees.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys

MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
BED = "/run/bed"
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2); raise OSError naming the target on failure."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: mount {kind or source}", target)


def write(path: str, text: str, mode: int = 0o644) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as file:
        file.write(text)


def memory(target: str, size: str, mode: str = "755") -> None:
    os.makedirs(target, exist_ok=True)
    mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},mode={mode}")


def replace(target: str, text: str) -> None:
    """Bind-mount a file of this host over the machine's file."""
    own = f"{BED}/{target.strip('/').replace('/', '-')}"
    write(own, text)
    if not os.path.exists(target):  # there is no file to bind over, and the machine's directories must not change
        return
    mount(own, target, "", MS_BIND)


def accounts(home: str) -> tuple[str, str]:
    """Provide passwd and shadow: the machine's, with another home for root and root login by key."""
    with open("/etc/passwd") as file:
        lines = [line for line in file.read().splitlines() if not line.startswith("root:")]
    if not any(line.startswith("sshd:") for line in lines):
        lines.append("sshd:x:74:65534::/run/sshd:/usr/sbin/nologin")
    lines.insert(0, f"root:x:0:0:root:{home}:/bin/bash")
    return "\n".join(lines) + "\n", "root:*:19000:0:99999:7:::\n"


def private_mounts() -> None:
    """Make later mounts invisible to all other processes of the machine."""
    try:
        mount("none", "/", "", MS_REC | MS_PRIVATE)
    except OSError:  # the root directory of a chroot need not be a mount point; then use the existing mounts
        with open("/proc/self/mountinfo") as file:
            if any(" shared:" in line for line in file):
                raise


def settle(config: dict) -> None:
    """Set up mounts, names and files of the host."""
    socket.sethostname(config["name"])
    private_mounts()
    mount("proc", "/proc", "proc")
    try:
        mount("sysfs", "/sys", "sysfs")  # sysfs shows the network interfaces of the namespace that mounts it
    except OSError:
        pass
    memory("/run", "64m")
    memory("/dev/shm", config["shm"], "1777")
    memory("/var/tmp", "1g", "1777")
    os.makedirs("/run/sshd", exist_ok=True)
    passwd, shadow = accounts(config["home"])
    replace("/etc/passwd", passwd)
    replace("/etc/shadow", shadow)
    replace("/etc/hosts", config["hosts"])
    replace("/etc/hostname", config["name"] + "\n")
    replace("/etc/resolv.conf", "")
    replace("/proc/sys/kernel/random/boot_id", config["boot_id"] + "\n")
    for path, text, mode in config["files"]:
        write(path, text, mode)
    os.chmod(config["home"], 0o700)
    os.chdir(config["home"])


def serve(sshd: str) -> None:
    """Run sshd and reap orphans until stdin closes."""
    wake, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    log = os.open(f"{BED}/sshd.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    if sshd:
        subprocess.Popen(
            [sshd, "-D", "-e", "-f", f"{BED}/sshd_config"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wake, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if not os.read(fd, 4096) and fd == 0:
                return
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def main() -> None:
    order = b""
    while not order.endswith(b"\n"):
        piece = os.read(0, 1 << 16)
        if not piece:
            sys.exit(1)
        order += piece
    config = json.loads(order)
    try:
        settle(config)
    except OSError as error:
        print(f"failed: {error}", flush=True)
        sys.exit(1)
    print("ready", flush=True)
    serve(config["sshd"])


if __name__ == "__main__":
    main()
