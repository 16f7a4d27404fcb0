"""Create a Kubernetes cluster, run a command (default: a shell) with access to it, and remove the cluster again.

Must run as root, on Debian 12. Built programs and images are kept in a cache folder.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from horovod.runner.base.linux import dying_with
from tools.kubernetes_bed.node import name_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CGROUPS = Path("/sys/fs/cgroup")
PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "catatonit": "catatonit",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "rsync": "rsync",
    "openssl": "openssl",
    "ip": "iproute2",
}
# A cgroup's default CPU shares, and the factor by which one step of niceness changes them.
DEFAULT_SHARES, LIGHTER = 1024, 1.25
# The cluster gets as much CPU time as this number of test threads.
THREADS = 8


def default_cache() -> Path:
    """Return the cache folder for built programs and images."""
    configured = os.environ.get("HOROVOD_KUBERNETES_BED")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(configured) if configured else Path(base, "horovod/kubernetes-bed")


def install_packages() -> None:
    """Install the missing packages with apt-get."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [
        package
        for program, package in PACKAGES.items()
        if not (os.path.exists(program) if program.startswith("/") else shutil.which(program, path=path))
    ]
    if not missing:
        return
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing]
    if subprocess.run(install, env=environ, capture_output=True, timeout=600).returncode:
        subprocess.run(["apt-get", "-q", "update"], env=environ, capture_output=True, timeout=600)
        done = subprocess.run(install, env=environ, capture_output=True, text=True, timeout=600)
        if done.returncode:
            raise SystemExit(f"kubernetes_bed: apt-get cannot install {', '.join(missing)}: {done.stderr.strip()}")


@contextlib.contextmanager
def cgroups(prefix: str, nodes: Sequence[str]) -> Iterator[str]:
    """Create cgroups for the nodes, yield the cgroups' common name, and remove the cgroups afterwards.

    Each cgroup hierarchy gets a cgroup with a child per node. Its CPU shares are derived from this process's niceness,
    because niceness has an effect only within one cgroup.
    """
    name = f"{prefix}{os.getpid()}"
    created = [each / name for each in sorted(CGROUPS.iterdir()) if (each / "cgroup.procs").exists()]
    for path in created:
        for each in (path, *(path / node for node in nodes)):
            each.mkdir()
            for setting in ("cpuset.cpus", "cpuset.mems"):
                if (each / setting).exists():
                    (each / setting).write_text((each.parent / setting).read_text())
        if (path / "cpu.shares").exists():
            (path / "cpu.shares").write_text(str(max(2, round(THREADS * DEFAULT_SHARES / LIGHTER ** os.nice(0)))))
    try:
        yield f"/{name}"
    finally:
        until = time.monotonic() + 20
        for path in created:
            while not _remove(path):
                if time.monotonic() > until:
                    print(f"kubernetes_bed: {path} cannot be removed", file=sys.stderr)
                    break
                time.sleep(0.1)


def prefix_of(cache: Path) -> str:
    """Return the prefix of the cgroup names.

    The prefix depends on the cache folder, because clusters can run in parallel.
    """
    return f"hvd-bed-{hashlib.sha256(os.fsencode(cache.resolve())).hexdigest()[:12]}-"


def remove_old(prefix: str) -> None:
    """Remove cgroups left behind by a killed run."""
    for each in CGROUPS.glob(f"*/{prefix}*"):
        _remove(each)


def clear(folder: Path) -> None:
    """Remove a folder, but do not touch files on file systems that are mounted inside it."""
    if folder.exists():
        subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True, timeout=120)


def _remove(path: Path) -> bool:
    with contextlib.suppress(OSError):
        for folder, _, _ in os.walk(path, topdown=False):
            os.rmdir(folder)
    return not path.exists()


def entering(name: str) -> Callable[[], None]:
    """Return a function that moves a new process into the cgroups and makes it die together with this process."""
    dies = dying_with(os.getpid())

    def enter() -> None:
        dies()
        for each in CGROUPS.iterdir():
            procs = each / name.lstrip("/") / "cgroup.procs"
            if procs.exists():
                procs.write_text(str(os.getpid()))

    return enter


def run(argv: Sequence[str], environ: Mapping[str, str], enter: Callable[[], None]) -> int:
    """Run a command that is killed when this process dies, and return the command's exit code.

    Args:
        words: Command and its arguments.
        environ: Environment variables of the command.
        enter: Function that is called in the child process before it executes the command.

    Raises:
        OSError, SubprocessError: If the command cannot be started.
    """
    process = subprocess.Popen(argv, env=environ, preexec_fn=enter)
    try:
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Create a cluster, run a command with access to it, and return the command's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.kubernetes_bed", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 2, 3), help="how many there are (1)")
    parser.add_argument("--logs", type=Path, help="a folder for what the cluster's programs write")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if os.geteuid() != 0:
        raise SystemExit(f"kubernetes_bed: user {os.geteuid()} may make no nodes; run it as root")
    install_packages()
    cache = default_cache()
    subprocess.run([HERE / "build.sh", cache], check=True)
    subprocess.run([HERE / "image.sh", cache / "images"], check=True)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with open(cache / "bed.lock", "w") as lock, contextlib.ExitStack() as stack:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Wait for a lock, because runs with the same cache share the nodes' images.
        prefix = prefix_of(cache)
        remove_old(prefix)
        work = cache / "run"
        clear(work)
        stack.callback(clear, work)
        work.mkdir()
        with cgroups(prefix, [name_of(number + 1) for number in range(args.nodes)]) as name:
            argv = ["unshare", "--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child"]
            argv += ["--mount-proc", "catatonit", "--", sys.executable, "-m", "tools.kubernetes_bed.inside"]
            argv += [
                str(work),
                str(cache),
                str(args.nodes),
                name,
                "--",
                *(command or [os.environ.get("SHELL", "bash")]),
            ]
            environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
            try:
                return run(argv, environ, entering(name))
            finally:
                if args.logs:
                    _save(work, args.logs)


def _save(work: Path, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    for path in work.glob("*/*.log"):
        shutil.copy(path, logs / f"{path.parent.name}-{path.name}")


if __name__ == "__main__":
    sys.exit(main())
