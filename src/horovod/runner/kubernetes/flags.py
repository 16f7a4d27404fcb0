"""Flags of `horovodrun kubernetes` with their help texts. Flags of horovodrun are also accepted."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import command_line
from horovod.runner.command.flags import FLAGS as JOB_FLAGS
from horovod.runner.command.flags import Flag, Value, flag_names
from horovod.runner.kubernetes import values as names
from horovod.runner.kubernetes import values as volumes

DEFAULT_PORT = 41000
DEFAULT_GPU = "nvidia.com/gpu"
DEFAULT_GRACE = 30
DEFAULT_KEEP = 3600
PATIENCE = 600.0
"""Default seconds for all pods to start; includes pulling images and creating nodes."""

POD, FINDING, WHERE, CLUSTER, END = (
    "pods",
    "who they are",
    "where they run",
    "the cluster",
    "lifetime",
)
GROUPS = (POD, FINDING, WHERE, CLUSTER, END)


def _value(metavar: str, accepted: str, parse: Callable[[str], object], completes: str = "") -> Value:
    return Value(metavar, accepted, parse, completes=completes)


def _integer(low: int, high: int) -> Value:
    def parse(text: str) -> int:
        if not low <= int(text) <= high:
            raise ValueError(text)
        return int(text)

    return _value("N", f"an integer from {low} to {high}", parse)


def _text(metavar: str, completes: str = "") -> Value:
    def parse(text: str) -> str:
        if not text.strip():
            raise ValueError(text)
        return text

    return _value(metavar, "text that is not empty", parse, completes)


def _policy(text: str) -> str:
    if text not in ("Always", "IfNotPresent", "Never"):
        raise ValueError(text)
    return text


_OBJECT = _value("NAME", names.OBJECT, names.object_name)
_QUANTITY = _value("Q", names.QUANTITY, names.quantity)

# fmt: off
FLAGS: tuple[Flag, ...] = (
    Flag(("--image",), POD, "image of all pods: it has horovod, the program and what that needs", _text("IMAGE")),
    Flag(("--slots-per-pod",), POD, "ranks in each pod, which share its memory and GPUs (default 1)",
         _integer(1, 1024)),
    Flag(("--gpus",), POD, "GPUs of each pod (default 0)", _integer(0, 1024)),
    Flag(("--gpu-resource",), POD, f"what they are called there (default {DEFAULT_GPU})",
         _value("NAME", "a name as nvidia.com/gpu", names.resource)),
    Flag(("--cpu",), POD, "cores of each pod, asked for and at most", _QUANTITY),
    Flag(("--memory",), POD, "memory of each pod, asked for and at most", _QUANTITY),
    Flag(("--shm-size",), POD, "most that /dev/shm may take of it (default: all)", _QUANTITY),
    Flag(("--env",), POD, "variable of the ranks; NAME alone: with its value here",
         _value("NAME[=VALUE]", names.VARIABLE, names.variable), repeat=True),
    Flag(("--volume",), POD, "what is mounted in all pods: " + volumes.ACCEPTED,
         _value("WHAT", volumes.ACCEPTED, volumes.parse), repeat=True),
    Flag(("--working-dir",), POD, "where the program runs (default: as the image says)", _text("DIR")),
    Flag(("--python",), POD, "the image's Python (default python)", _text("PATH")),
    Flag(("--image-pull-policy",), POD, "when the image is pulled: Always, IfNotPresent, Never",
         _value("POLICY", "Always, IfNotPresent or Never", _policy)),
    Flag(("--image-pull-secret",), POD, "secret with which it is pulled", _OBJECT, repeat=True),
    Flag(("--pod-template",), POD, "YAML file with a pod or its template; its container `horovod`, or its first, gets "
         "what the other flags say", _text("FILE", "file")),

    Flag(("--name",), FINDING, "of the job (default: made up)", _value("NAME", names.JOB_NAME, names.job_name)),
    Flag(("--label",), FINDING, "label of all that is created",
         _value("KEY=VALUE", names.PAIR, names.pair), repeat=True),
    Flag(("--annotation",), FINDING, "annotation of all pods",
         _value("KEY=VALUE", "KEY=VALUE", names.annotation), repeat=True),
    Flag(("--service-account",), FINDING, "account of the pods, who get no token of it (default: the namespace's)",
         _OBJECT),
    Flag(("--port",), FINDING, f"where the launcher listens in its pod (default {DEFAULT_PORT})",
         _integer(1024, 65535)),

    Flag(("--node-selector",), WHERE, "label that the nodes have to have",
         _value("KEY=VALUE", names.PAIR, names.pair), repeat=True),
    Flag(("--toleration",), WHERE, "taint that nodes may have",
         _value("KEY[=VALUE][:EFFECT]", "KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT; KEY * is any; EFFECT is "
                "NoSchedule, PreferNoSchedule or NoExecute", names.toleration), repeat=True),
    Flag(("--priority-class",), WHERE, "priority of the pods", _OBJECT),

    Flag(("--namespace",), CLUSTER, "namespace (default: the context's)",
         _value("NAME", names.NAMESPACE, names.namespace)),
    Flag(("--context",), CLUSTER, "context of the kubeconfig (default: its current one)", _text("NAME")),
    Flag(("--kubeconfig",), CLUSTER, "that file (default: KUBECONFIG, else ~/.kube/config)", _text("FILE", "file")),

    Flag(("--detach",), END, "create the job and leave it alone"),
    Flag(("--dry-run",), END, "print what would be created, as YAML, and ask no cluster"),
    Flag(("--keep",), END, f"s for which the job stays there once it has ended; without it, it goes at once, or "
         f"{DEFAULT_KEEP} s later if no process waits for it", _integer(0, 31_536_000)),
    Flag(("--grace",), END, f"s from the warning that a pod has to go, to its end (default {DEFAULT_GRACE})",
         _integer(0, 86_400)),
)
# fmt: on

HELP = ("-h", "--help")
ACTIONS = ("attach", "status", "delete")
OF_ALL = ("--namespace", "--context", "--kubeconfig")
"""Flags of the commands attach, status and delete."""

NOT_THERE = {
    "hosts": "the cluster chooses the nodes",
    "hostfile": "the cluster chooses the nodes",
    "host_discovery_script": "pods that come and go are the hosts; --min-np makes the job elastic",
    "slots_per_host": "--slots-per-pod says that",
    "mpi": "the pods' agents call the launcher",
    "jsrun": "the pods' agents call the launcher",
    "mpi_args": "there is no mpirun",
    "binding_args": "there is no mpirun",
    "ssh_port": "there is no ssh",
    "ssh_identity_file": "there is no ssh",
    "remote_python": "--python names the image's",
    "debug_rank": "no rank has a terminal there",
    "config_file": "the file is not there; write its settings as flags",
    "check_build": "it is about this machine",
    "doctor": "it is about hosts reached by ssh",
    "benchmark": "`python -m horovod.benchmark` as the command does the same",
    **dict.fromkeys(("version", "completion", "help_all", "explain", "autotune_show"), "no job runs by it"),
}
"""Names (in the namespace) of horovodrun's flags that have no meaning on Kubernetes, with the reasons."""


@dataclass(frozen=True)
class CommandLine:
    """Parsed command line of `horovodrun kubernetes`.

    Attributes:
        values: Values of the Kubernetes flags by `Flag.dest`. The value of a repeatable flag is a list.
        job: Flags for horovodrun, unchanged.
        command: Command that each rank runs.
    """

    values: dict[str, Any] = field(default_factory=dict)
    job: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)


def split(arguments: Sequence[str]) -> CommandLine:
    """Split the command line into flags of Kubernetes, flags of horovodrun, and the command of the ranks.

    The command begins at the first argument that is not a flag, or after `--`.

    Raises:
        LaunchError: If a flag is unknown or its value is invalid.
    """
    own = {name: flag for flag in FLAGS for name in flag.names}
    values = {name: flag.nargs if flag.value else 0 for flag in JOB_FLAGS for name in flag.names}
    line = CommandLine()
    index = 0
    while index < len(arguments):
        argument = arguments[index]
        if argument == "--":
            line.command.extend(arguments[index + 1 :])
            break
        if not argument.startswith("-") or argument == "-":
            line.command.extend(arguments[index:])
            break
        name, equals, value = argument.partition("=")
        if argument in HELP:
            line.values["help"] = True
            break
        if (flag := own.get(name)) is None:
            argument = _resolve(argument)
            end = index + 1 + values.get(argument, 0)
            line.job.extend([argument, *arguments[index + 1 : end]])
            index = end
        elif flag.value is None:
            if equals:
                raise LaunchError(f"{name} takes no value, got {value!r}")
            line.values[flag.dest] = True
            index += 1
        else:
            if not equals and index + 1 == len(arguments):
                raise LaunchError(f"{name} must be {flag.value.accepted}, got no value")
            take(line.values, flag, value if equals else arguments[index + 1])
            index += 1 if equals else 2
    return line


def offered() -> list[str]:
    """Return the completions of `horovodrun kubernetes`: its actions and flags, without horovodrun's own flags."""
    return [*ACTIONS, *(name for flag in FLAGS for name in flag.names)]


def take(values: dict[str, Any], flag: Flag, text: str) -> None:
    """Store the value of a flag in `values`. Raises LaunchError if the value is invalid."""
    assert flag.value is not None
    try:
        value = flag.value.parse(text)
    except ValueError:
        raise LaunchError(f"{flag.names[-1]} must be {flag.value.accepted}, got {text!r}") from None
    if flag.repeat:
        values.setdefault(flag.dest, []).append(value)
    else:
        values[flag.dest] = value


def _resolve(argument: str) -> str:
    try:
        return command_line.in_full(argument)
    except LaunchError as error:
        import difflib  # Import lazily, because only error messages need difflib.

        near = difflib.get_close_matches(argument.partition("=")[0], [flag.names[-1] for flag in FLAGS], 1, 0.7)
        if near and "did you mean" not in str(error):
            raise LaunchError(f"{error}; did you mean {near[0]}?") from None
        raise


USAGE = (
    "horovodrun kubernetes -np N --image IMAGE [flags, horovodrun's too] -- command [arguments]",
    "horovodrun kubernetes attach|delete NAME, status [NAME] [--namespace, --context ...]",
)
_ABOUT = (
    "Creates a job on a Kubernetes cluster, shows what its ranks write, and ends with its exit code; Ctrl-C deletes "
    "it. --min-np makes it elastic: pods may come and go."
)
_COLUMN = 32
_WIDTH = 100


def text() -> str:
    """Return the help text, with all flags that horovodrun itself does not have."""
    parts = ["usage: " + "\n       ".join(USAGE), textwrap.fill(_ABOUT, _WIDTH)]
    for group in GROUPS:
        rows = [_row(flag_names(flag), flag.help) for flag in FLAGS if flag.group == group]
        parts.append("\n".join([f"{group}:", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(names: str, description: str) -> str:
    first = f"  {names}"
    wrapped = textwrap.fill(
        description, _WIDTH, initial_indent=" " * _COLUMN, subsequent_indent=" " * _COLUMN, break_on_hyphens=False
    )
    return f"{first}\n{wrapped}" if len(first) + 2 > _COLUMN else first.ljust(_COLUMN) + wrapped[_COLUMN:]
