"""Command `horovodrun`, which starts jobs and handles flags such as --check-build and --doctor."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

from horovod._version import __version__
from horovod.common.contract.reasons import PIPE as REPORT_PIPE
from horovod.runner.base.job_result import AgentError, JobResult, LaunchError
from horovod.runner.base.linux import SignalQueue, restored_signals
from horovod.runner.command import cli, command_line, flags
from horovod.runner.job import terminal
from horovod.runner.job.job import make_job
from horovod.runner.job.policy import FINAL_OUTPUT_SECONDS
from horovod.runner.job.terminal import StdinSource
from horovod.runner.job.watch import wait_for
from horovod.runner.output.output import OutputQueue

USAGE_ERROR = 2
KUBERNETES = "kubernetes"
"""First argument that selects a job on a Kubernetes cluster."""


def _open_standard_streams() -> bool:
    """Open the null device for each of the descriptors 0, 1 and 2 that the caller has closed.

    Otherwise, a new pipe could be given one of these numbers.

    Returns:
        True if the process has a standard input.
    """
    has_stdin = True
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            has_stdin = has_stdin and fd != 0
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
    return has_stdin


def _write(text: str, seconds: float | None = None) -> None:
    """Write `text` to stderr, with the command's name before each line.

    Do not use `sys.stderr`, because a closed stderr must not change the exit code.

    Args:
        text: Lines to write.
        seconds: Seconds to wait for the reader of stderr, or None for no limit.
    """
    data = "".join(f"horovodrun: {line}\n" for line in text.splitlines()).encode(errors="backslashreplace")
    end = None if seconds is None else time.monotonic() + seconds
    with contextlib.suppress(OSError), contextlib.closing(OutputQueue()) as queue:
        queue.put(2, data)
        while (fd := queue.waiting_for()) is not None and (end is None or time.monotonic() < end):
            wait_for({fd: select.POLLOUT}, end)
            queue.write()


def _run_flag(namespace: argparse.Namespace, take_signals: Callable[[], SignalQueue | None]) -> JobResult | None:
    """If a flag requests an action other than running a job, perform it and return its result.

    Otherwise, return None. Modules that only these actions need are imported here, so that jobs do not load them.
    """
    if namespace.version:
        print(__version__)
    elif namespace.completion:
        from horovod.runner.command import completion
        from horovod.runner.kubernetes.flags import offered

        print(completion.script(namespace.completion, offered()), end="")
    elif namespace.help_all:
        print(flags.help_text(everything=True), end="")
    elif namespace.check_build:
        from horovod.runner.command import check_build

        print(check_build.report(verbose=bool(namespace.verbose)))
    elif namespace.explain:
        from horovod.runner.command import explain

        print(explain.run(namespace.explain), end="")
    elif namespace.autotune_show:
        from horovod.common.autotune import results

        print(results.table(results.stored()))
    elif namespace.doctor:
        from horovod.runner.doctor import doctor

        return doctor.run(namespace, os.environ, take_signals())
    else:
        return None
    return JobResult(0)


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line of `horovodrun`.

    Args:
        arguments: Arguments after the program's name. The default is the arguments of this process.

    Returns:
        Namespace for `_run`, with the value of each flag and the command as `command`. Absent flags are None.

    Raises:
        ValueError: If a flag is unknown, or its value is invalid.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    namespace, command = cli.parse(words)
    namespace.command, namespace.words = command, words
    return namespace


def _run(args: argparse.Namespace) -> None:
    """Run the job described by `args`, a result of `parse_args`. Meant for programs that are launchers themselves.

    In the main thread, signals end the job in the same way as a job of `horovodrun`.

    Raises:
        ValueError: If the job cannot be started as requested.
        RuntimeError: If the job has failed. The message contains the rank that failed first.
    """
    with restored_signals() as take_signals:
        result = _started(args, True, take_signals)
    if result.exit_code != 0:
        raise RuntimeError(result.message or f"the job has ended with exit code {result.exit_code}")
    if result.message:
        _write(result.message)


def run_commandline() -> None:
    """Run the `horovodrun` command. Exit the process if the exit code is not 0."""
    code = main()
    if code != 0:
        sys.exit(code)


def _outer_job(environ: Mapping[str, str]) -> str:
    """Return a warning if rank 0 of another job has started this launcher. Otherwise, return an empty string."""
    size = environ.get("HOROVOD_SIZE", "")
    if REPORT_PIPE not in environ or environ.get("HOROVOD_RANK") != "0" or not size.isdecimal() or int(size) < 2:
        return ""
    return (
        f"rank 0 of another horovodrun has started this one; if all {size} ranks of that do so, there are {size} jobs "
        "that know nothing of each other"
    )


def _started(
    namespace: argparse.Namespace, has_stdin: bool, take_signals: Callable[[], SignalQueue | None]
) -> JobResult:
    status = _run_flag(namespace, take_signals)
    if status is not None:
        return status
    command = namespace.command
    if refusal := command_line.refusal_of_script(namespace.words, [] if namespace.benchmark else command):
        raise LaunchError(refusal)
    if namespace.jsrun or os.environ.get("LSB_JOBID"):
        from horovod.runner.external_launchers import mpi

        mpi.apply(namespace, os.environ)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = cli.settings(namespace, command, os.environ)
    if settings.in_this_directory and (missing := command_line.missing_script(settings.command)):
        raise LaunchError(f"there is no file {missing!r}, which Python is to run{command_line.near_file(missing)}")
    for warning in caught:
        _write(f"warning: {warning.message}")
    if outer := _outer_job(os.environ):
        _write(f"warning: {outer}")
    signals = take_signals()
    if settings.jsrun:
        from horovod.runner.external_launchers import mpi

        return mpi.run_jsrun(settings, os.environ, signals)
    if settings.mpi is not None:
        from horovod.runner.external_launchers import mpi

        return mpi.run_job(settings, os.environ, signals)
    stdin = StdinSource() if has_stdin else None
    with terminal.terminal_restored(settings.debug_rank):
        return make_job(settings, os.environ, stdin=stdin, signals=signals).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, and return its exit code.

    Args:
        arguments: Arguments after the program's name. The default is the arguments of this process.

    Returns:
        0 on success, or the exit code of the rank that failed first (128 + n for signal n). 130 after Ctrl-C, 143 after
        SIGTERM, and 2 for an invalid command line.
    """
    has_stdin = _open_standard_streams()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if argv[:1] == [KUBERNETES]:
            # Import lazily, because most jobs do not run on Kubernetes.
            from horovod.runner.kubernetes import command

            return command.main(argv[1:])
        result = _started(parse_args(argv), has_stdin, SignalQueue)
    except LaunchError as error:
        _write(f"error: {error}")
        _write(f"`horovodrun {f'{KUBERNETES} ' if argv[:1] == [KUBERNETES] else ''}--help` shows the flags")
        return USAGE_ERROR
    except (AgentError, OSError) as error:
        _write(f"error: {error}")
        return 1
    if result.message:
        _write(result.message, FINAL_OUTPUT_SECONDS if result.stopped_by else None)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
