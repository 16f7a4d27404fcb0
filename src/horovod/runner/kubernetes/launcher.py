"""Program in the launcher's pod. It waits for the agents of the worker pods, and then acts like horovodrun.

The flags and the exit code are the same as those of horovodrun.

    horovod.runner.kubernetes.launcher --of-version V --port P --slots-per-pod K -- FLAGS... -- COMMAND...
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType

import msgspec

from horovod._version import __version__
from horovod.runner.base.job_result import AgentError, JobResult, LaunchError
from horovod.runner.base.linux import SignalQueue
from horovod.runner.cluster import ArrivalError, Gathering, JobOptions, run_command
from horovod.runner.command import cli
from horovod.runner.kubernetes.manifests import TOKEN_VARIABLE
from horovod.runner.kubernetes.request import check_elastic, check_job, max_size, patience
from horovod.runner.kubernetes.values import token_key
from horovod.runner.plan.settings import LaunchSettings

USAGE_ERROR = 2
_ADVICE = (
    "`kubectl get pods` and `horovodrun kubernetes status` say what keeps the others: too few free nodes, an image "
    "that cannot be pulled, a quota. A network policy has to let pods of the job reach each other"
)


class Stopped(RuntimeError):
    """Error raised if a signal arrives before the job begins. `number` is the signal number."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} while it waited for the pods")
        self.number = number


@dataclass(frozen=True)
class LauncherArguments:
    """Parsed command line of the launcher's pod."""

    port: int
    slots: int
    version: str
    arguments: list[str]
    command: list[str]


def orders(arguments: Sequence[str]) -> LauncherArguments:
    """Parse the launcher's command line. Raises LaunchError if it is invalid."""
    parser = argparse.ArgumentParser(prog="horovod.runner.kubernetes.launcher", exit_on_error=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots-per-pod", type=int, default=1)
    parser.add_argument("--of-version", default="")
    rest = list(arguments)
    try:
        first = rest.index("--")
        second = rest.index("--", first + 1)
    except ValueError:
        raise LaunchError("two words `--` are missing: before horovodrun's flags and before the command") from None
    known = parser.parse_args(rest[:first])
    return LauncherArguments(
        known.port, known.slots_per_pod, known.of_version, rest[first + 1 : second], rest[second + 1 :]
    )


def settings(arguments: LauncherArguments, environ: Mapping[str, str]) -> tuple[LaunchSettings, JobOptions]:
    """Return the settings and options of the job.

    The ranks are assigned to hosts later, when the agents have connected.

    Raises:
        LaunchError: If a flag is invalid, or the image has another version of horovod.
    """
    if arguments.version and arguments.version != __version__:
        raise LaunchError(
            f"the image has horovod {__version__}, the horovodrun that has created this job {arguments.version}; "
            "install the same version on both"
        )
    namespace, _ = cli.parse([*arguments.arguments, "--", "true"])
    check_job(namespace)
    if namespace.num_proc is None:
        raise LaunchError("-np is missing: say how many processes to start")
    if namespace.num_proc % arguments.slots:
        raise LaunchError(f"-np must be a multiple of --slots-per-pod {arguments.slots}, got {namespace.num_proc}")
    check_elastic(namespace, arguments.slots)
    # Check the settings against the maximum number of pods, because an elastic job can grow.
    pods = (namespace.num_proc if namespace.min_num_proc is None else max_size(namespace)) // arguments.slots
    namespace.hosts = ",".join(f"pod-{number}:{arguments.slots}" for number in range(pods))
    checked = cli.settings(namespace, arguments.command, environ)
    elastic = checked.elastic and replace(checked.elastic, hosts=())
    own_place = msgspec.structs.replace(checked.options, whole_environment=True)
    options = JobOptions(start_timeout=patience(namespace), advice=_ADVICE)
    return replace(checked, options=own_place, elastic=elastic), options


def run(arguments: LauncherArguments, environ: dict[str, str]) -> JobResult:
    """Run the job. Raises LaunchError, ValueError, TimeoutError, ArrivalError, Stopped, AgentError or OSError."""
    key = token_key(environ.pop(TOKEN_VARIABLE, ""))
    os.environ.pop(TOKEN_VARIABLE, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checked, options = settings(arguments, environ)
    for warning in caught:
        _log(f"warning: {warning.message}")
    # Workers use the environment of their own pods. Only variables that begin with HOROVOD_ are copied from this pod.
    own = {name: value for name, value in environ.items() if name.startswith("HOROVOD_")}
    with Gathering("rank", ports=f"{arguments.port}-{arguments.port}", token=key) as gathering:

        def stop(number: int, _frame: FrameType | None) -> None:
            gathering.fail(Stopped(number))

        # Process 1 of a container ignores signals without handlers, so handle them until SignalQueue takes over.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        many = checked.size // arguments.slots
        _log(f"waiting for {checked.size} ranks in {many} pods")
        return run_command(gathering, checked, own, options, SignalQueue)


def _log(text: str) -> None:
    for line in text.splitlines():
        print(f"horovodrun: {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the launcher with the arguments of this process and return the exit code of the job."""
    try:
        result = run(orders(sys.argv[1:]), dict(os.environ))
    except (LaunchError, argparse.ArgumentError) as error:
        _log(f"error: {error}")
        return USAGE_ERROR
    except Stopped as error:
        _log(str(error))
        return 128 + error.number
    except (AgentError, ArrivalError, OSError, ValueError) as error:
        _log(f"error: {error}")
        return 1
    if result.message:
        _log(result.message)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
