"""Help text of `horovodrun --help`, generated from the table of flags.

argparse's own layout differs between Python versions.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator

from horovod.runner.command.flags import FLAGS, GROUPS, Flag

USAGE = "horovodrun -np N [flags] [NAME=value ...] command [arguments]"
_ABOUT = "Start N copies of a command that work together as one Horovod job."
_ORDER = (
    "Flags come before the command; everything after its first word belongs to it. Long flags may be shortened as long "
    "as it is clear which one is meant. A flag overrides the key of the YAML file (--config-file), which overrides the "
    "environment variable (docs/settings.md lists all three)."
)
EXAMPLES = (
    ("horovodrun -np 4 python train.py", "four processes on this machine"),
    ("horovodrun -np 8 -H server1:4,server2:4 python train.py", "on two hosts, four each"),
    ("horovodrun -np 16 --hostfile hosts python train.py", "hosts from lines 'server1 slots=4'"),
    ("horovodrun -np 2 --log-level debug --output-filename logs python train.py", "a log per rank in logs/"),
    ("horovodrun -np 2 --config-file horovod.yaml python train.py", "settings from a file"),
    ("horovodrun -np 2 --benchmark", "measure the collectives"),
    ("source <(horovodrun --completion bash)", "completion in this shell"),
)
_INDENT = 2
_COLUMN = 34  # The descriptions begin at column _COLUMN.
_MOST = 110  # The text has at most _MOST columns, because longer lines are hard to read.


def text(width: int | None = None, everything: bool = False) -> str:
    """Return the text of `horovodrun --help`.

    Args:
        width: Width in columns. The default is the width of the terminal.
        everything: True to include flags that horovodrun ignores.
    """
    width = max(60, min(width or shutil.get_terminal_size((100, 24)).columns, _MOST))
    column = min(_COLUMN, width // 2)
    parts = [f"usage: {USAGE}", textwrap.fill(_ABOUT, width), textwrap.fill(_ORDER, width)]
    for group in GROUPS:
        shown = [flag for flag in FLAGS if flag.group == group and (everything or not flag.idle)]
        rows = [_row(flag_names(flag), described(flag), width, column) for flag in shown]
        if group == GROUPS[0]:
            rows.insert(0, _row("-h, --help", "show this help and exit", width, column))
        if rows:
            parts.append("\n".join([f"{group}:", *rows]))
    idle = sum(flag.idle for flag in FLAGS)
    if idle and not everything:
        parts.append(textwrap.fill(f"{idle} more flags have no effect or are not available yet: --help-all", width))
    parts.append("\n".join(["examples:", *_examples(width)]))
    parts.append(textwrap.fill("`horovodrun kubernetes --help` tells of jobs on a Kubernetes cluster", width))
    return "\n\n".join(parts) + "\n"


def flag_names(flag: Flag) -> str:
    """Return the flag's names and value for the help text, such as `-np, --num-proc N` or `--[no-]autotune`."""
    names = [f"--[no-]{name[2:]}" if flag.no else name for name in flag.names]
    values = [flag.value.metavar] * flag.nargs if flag.value is not None else []
    return " ".join([", ".join(names), *values])


def described(flag: Flag) -> str:
    """Return the flag's description with its choices, and with a note if horovodrun ignores the flag."""
    choices = ", ".join(flag.value.choices) if flag.value is not None else ""
    text = f"{flag.help}: {choices}" if choices else flag.help
    return f"{text} (no effect yet)" if flag.later else text


def _row(names: str, description: str, width: int, column: int) -> str:
    first = " " * _INDENT + names
    rest = " " * column
    wrapper = textwrap.TextWrapper(width, subsequent_indent=rest, break_on_hyphens=False)
    if len(first) + 2 > column:
        wrapper.initial_indent = rest
        return f"{first}\n{wrapper.fill(description)}"
    wrapper.initial_indent = first.ljust(column)
    return wrapper.fill(description)


def _examples(width: int) -> Iterator[str]:
    for command, meaning in EXAMPLES:
        yield f"{' ' * _INDENT}{command}"
        yield textwrap.indent(meaning, " " * (_INDENT + 4))
