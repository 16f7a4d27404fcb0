"""Parser of a discovery script's output. Pure."""

from __future__ import annotations

import re

from horovod.runner.base.errors import LaunchError
from horovod.runner.base.names import FLAGS, Names

MOST = 65536  # maximum slots of a host, as many ranks as a job may have
FORM = "'name' or 'name:slots' with slots at least 1; an IPv6 address as [address] or [address]:slots; one host a line"
_LINE = re.compile(r"(?:([\w.-]+)|\[([0-9A-Fa-f:.]+(?:%\w+)?)\])(?::([0-9]+))?", re.ASCII)
_SHOWN = 80  # maximum characters shown of a line that cannot be parsed


def parse(output: str, slots: int | None, script: str, names: Names = FLAGS) -> dict[str, int]:
    """Return slots by host, in the order of the lines. Blank lines are ignored.

    Args:
        output: Text to parse.
        slots: Slots of hosts for which a line gives none; None: every line must give them.
        script: Name of the script, for messages.
        names: How messages name `slots`.

    Raises:
        LaunchError: A line is not accepted; the message shows the line. Also a ValueError.
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
        if count > MOST:
            many = f" ({names.slots} {slots})" if given is None else ""
            raise LaunchError(f"{where} must give at most {MOST} slots, got {shown}{many}")
        if name in found:
            raise LaunchError(f"{where} must name another host, got {shown}: line {lines[name]} names {name!r} already")
        found[name], lines[name] = count, number
    return found


def _number(digits: str) -> int:
    """Return the number, cut to a few digits so that it is above MOST but not huge."""
    return int((digits.lstrip("0") or "0")[: len(str(MOST)) + 1])


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
