"""Runner for host discovery scripts with a time limit, and the discovery script for Slurm allocations.

Only `ScriptRun.finish` and the Slurm script (`main`) block.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from horovod.common.contract import boot
from horovod.runner.base.arguments import FLAGS, Names
from horovod.runner.base.job_result import LaunchError, describe_status
from horovod.runner.plan import allocations

MAX_SLOTS = 65536  # Maximum number of slots per host: the limit of ranks per job, because all can run on one host
FORM = "'name' or 'name:slots' with slots at least 1; an IPv6 address as [address] or [address]:slots; one host a line"
_LINE = re.compile(r"(?:([\w.-]+)|\[([0-9A-Fa-f:.]+(?:%\w+)?)\])(?::([0-9]+))?", re.ASCII)
_SHOWN = 80  # Maximum number of characters of an invalid line that messages show


def parse(output: str, slots: int | None, script: str, names: Names = FLAGS) -> dict[str, int]:
    """Parse the output of a discovery script into the slots of each host. Blank lines are ignored.

    Args:
        output: Output of the script.
        slots: Slots of each host for which the script prints no number. If None, each line must contain a number.
        script: Name of the script, for messages.
        names: Names of the settings in messages.

    Raises:
        LaunchError: If a line is invalid. The message contains the line.
    """
    found: dict[str, int] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(output.splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        where = f"line {number} of the output of {script}"
        shown = _shown(text)
        match = _LINE.fullmatch(text)
        if match is None:
            raise LaunchError(f"{where} must be {FORM}, got {shown}")
        name, given = match[1] or match[2], match[3]
        if given is None and slots is None:
            raise LaunchError(f"{where} must give slots, got {shown}; print '{text}:N', or give {names.slots}")
        count = slots if given is None else _number(given)
        assert count is not None
        if count < 1:
            raise LaunchError(f"{where} must give at least 1 slot, got {shown}; leave out hosts without slots")
        if count > MAX_SLOTS:
            many = f" ({names.slots} {slots})" if given is None else ""
            raise LaunchError(f"{where} must give at most {MAX_SLOTS} slots, got {shown}{many}")
        if name in found:
            raise LaunchError(f"{where} must name another host, got {shown}: line {lines[name]} names {name!r} already")
        found[name], lines[name] = count, number
    return found


def _number(digits: str) -> int:
    """Convert digits to an integer. A number too long for int() is truncated, but is still larger than MOST."""
    return int((digits.lstrip("0") or "0")[: len(str(MAX_SLOTS)) + 1])


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


SECONDS = 10.0
LIMIT = 1 << 20  # Maximum size of the script's output (bytes)
_PIECE = 1 << 16
# Maximum number of chunks read per call, so that a script that writes continuously cannot block the launcher.
_PIECES = 16
# Number of bytes that are kept from the end of the script's stderr
_MAX_STDERR = 1 << 14
# Seconds within which a killed script must exit
_KILLED = 1.0
_SHOWN_LINES = 5  # Maximum number of lines of the script's stderr that messages show


class ScriptRun:
    """Single run of a discovery script.

    Call `events`, `serve` and `next_time` in a loop until `done` is True, or call `finish`, which blocks. Then call
    `result`. Call `close` to stop the script early.
    """

    def __init__(
        self,
        script: str,
        slots: int | None,
        seconds: float = SECONDS,
        command: Sequence[str] = (),
        names: Names = FLAGS,
    ) -> None:
        """Start the discovery script.

        Args:
            script: Path of the script.
            slots: Number of slots for hosts that the script prints without a number.
            seconds: Time limit of the run.
            command: Command to run instead of the script. Messages then call it `script`.
            names: Names of the script and the slots in messages.

        Raises:
            LaunchError: If the script cannot be run.
        """
        self._script = script
        self._slots = slots
        self._seconds = seconds
        self._names = names
        path = os.path.abspath(os.path.expanduser(script))
        try:
            self._process = self._start([*command] or [path])
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise LaunchError(self._cannot_start(path, error)) from None
            # The script has no shebang line, so run it with sh, as shells do.
            self._process = self._start(["/bin/sh", path])
        self._deadline = time.monotonic() + seconds
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._streams = {self._process.stdout.fileno(): bytearray(), self._process.stderr.fileno(): bytearray()}
        self._out, self._errors = self._streams.values()
        self._open = dict.fromkeys(self._streams, True)
        for fd in self._streams:
            os.set_blocking(fd, False)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._trouble = ""
        self.done = False

    @staticmethod
    def _start(arguments: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )

    def _cannot_start(self, path: str, error: OSError) -> str:
        what = f"{self._names.script} must be an executable file, got {self._script!r}, "
        if os.path.isdir(path):
            return f"{what}a directory"
        if error.errno == errno.ENOENT:
            # The kernel also reports ENOENT if the script's interpreter does not exist.
            missing = (
                "whose interpreter (in its first line) does not exist"
                if os.path.exists(path)
                else "which does not exist here"
            )
            return f"{what}{missing}"
        if error.errno == errno.EACCES:
            return f"{what}which is not executable; run `chmod +x {self._script}`"
        return f"{what}which cannot be started: {error.strerror}"

    def events(self) -> dict[int, int]:
        """Return the file descriptors to poll, with their poll events."""
        if self.done:
            return {}
        wanted = {fd: select.POLLIN for fd, is_open in self._open.items() if is_open}
        return {**wanted, self._pidfd: select.POLLIN}

    def next_time(self) -> float | None:
        """Return the time (monotonic, s) at which the caller must call `serve`, or None if the run is done."""
        return None if self.done else self._deadline

    def serve(self) -> None:
        """Read the script's output. Kill the script if it exceeds its time limit or prints too much."""
        if self.done:
            return
        # Check whether the script has exited before reading its output, so that no output is missed.
        ended = self._process.poll() is not None
        for fd, data in self._streams.items():
            self._read(fd, data)
        if len(self._out) > LIMIT:
            self._trouble = f"{self._script} must print at most {LIMIT} bytes, got more"
            self._stop()
        elif ended:
            self._stop()
        elif time.monotonic() >= self._deadline:
            self._trouble = f"{self._script} must end within {self._seconds:g} s, but did not; it is run every second"
            self._stop()

    def _read(self, fd: int, data: bytearray) -> None:
        for _ in range(_PIECES):
            if not self._open[fd]:
                return
            try:
                piece = os.read(fd, _PIECE)
            except BlockingIOError:
                return
            if not piece:
                self._open[fd] = False
            data += piece
            if data is self._errors:
                del data[:-_MAX_STDERR]

    def _stop(self) -> None:
        """Kill the script and all processes in its process group."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            self._process.wait(_KILLED)
        except subprocess.TimeoutExpired:
            self._trouble = self._trouble or f"{self._script} did not end after SIGKILL and was abandoned"
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        os.close(self._pidfd)
        self.done = True

    def close(self) -> None:
        """Stop the script if it is running. Can be called repeatedly."""
        if not self.done:
            self._trouble = f"{self._script} was stopped"
            self._stop()

    def finish(self) -> dict[str, int]:
        """Block until the script has exited or reached its time limit, and return the slots of each host."""
        while not self.done:
            poll = select.poll()
            for fd, event in self.events().items():
                poll.register(fd, event)
            poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000 + 1)
            self.serve()
        return self.result()

    def result(self) -> dict[str, int]:
        """Return the slots of each host, in the order of the output. Raises LaunchError if the run failed."""
        if self._trouble:
            raise LaunchError(self._trouble)
        if self._process.returncode != 0:
            raise LaunchError(f"{self._script} ended: {describe_status(self._process.returncode)}{self._stderr_end()}")
        try:
            text = self._out.decode()
        except UnicodeDecodeError as error:
            raise LaunchError(f"{self._script} must print UTF-8 text: {error.reason}") from None
        return parse(text, self._slots, self._script, self._names)

    def _stderr_end(self) -> str:
        lines = self._errors.decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
        return "".join(f"\n    {line}" for line in lines)


# Seconds between two runs of the Slurm script. Each run puts load on a controller that all users share.
SLURM_EVERY = 5.0
SLURM_SECONDS = 4.0  # Time limit in seconds for each of the two Slurm queries; both must fit into the script's limit


def slurm_command(each: int | None) -> list[str]:
    """Return the command that runs the discovery script for Slurm allocations, which is `main` of this module.

    The script is a separate program, because Slurm's controller can take seconds to answer.

    Args:
        each: Number of slots per node. The default is the node's number of tasks.
    """
    return [
        sys.executable,
        *boot.arguments("horovod.runner.elastic.script"),
        *([] if each is None else [str(each)]),
    ]


def main() -> int:
    """Print the nodes of the Slurm allocation that are neither drained nor down, and return the exit code."""
    allocation = allocations.allocation(os.environ)
    try:
        if allocation is None:
            raise LaunchError("SLURM_JOB_ID must be set: this is not a Slurm allocation")
        nodes = allocations.nodes_of(ask_slurm("squeue", "-h", "-j", allocation.job, "-o", "%T|%N"), allocation.job)
        found = allocations.usable(ask_slurm("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%N|%T"), nodes)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return 1
    print(end=allocations.lines(found, allocation.slots, int(sys.argv[1]) if len(sys.argv) > 1 else None))
    return 0


def ask_slurm(program: str, *arguments: str, seconds: float = SLURM_SECONDS) -> str:
    """Run a Slurm command and return its output. Raises LaunchError if it fails or is too slow."""
    # Ignore the user's settings for Slurm commands, because they would change the output.
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("SQUEUE_", "SINFO_"))}
    try:
        process = subprocess.run(
            [program, *arguments], env=kept, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program} did not answer within {seconds:g} s; is Slurm's controller up?") from None
    except OSError as error:
        raise LaunchError(f"{program} cannot be run: {error.strerror}; Slurm's programs have to be on PATH") from None
    if process.returncode != 0:
        raise LaunchError(f"{program} failed: {process.stderr.strip() or f'exit code {process.returncode}'}")
    return process.stdout
