"""`horovodrun kubernetes --help`, generated from the table of flags. Pure."""

from __future__ import annotations

import textwrap

from horovod.runner.command.help import flag_names
from horovod.runner.kubernetes.flags import FLAGS, GROUPS

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
    """Return the usage, and all flags that horovodrun itself does not have."""
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
