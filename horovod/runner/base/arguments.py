"""What programs hand to the functions that start jobs, checked: `horovod.run`, and its like for clusters. Pure, but for
warnings."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

from horovod.common.contract.frames import warn_user


def integer(name: str, value: Any, least: int) -> int:
    """The value. Raises ValueError naming it when it is no integer of at least this."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, accepted is an integer of at least {least}")
    return value


def seconds(name: str, value: Any, most: float = sys.float_info.max) -> float:
    """The value. Raises ValueError naming it when it is no number above 0, or one above `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        finite, limit = ("finite ", "") if most == sys.float_info.max else ("", f", at most {most:.0f}")
        raise ValueError(f"{name} is {value!r}, accepted is a {finite}number of seconds above 0{limit}")
    return float(value)


def interfaces(name: str, value: Any) -> list[str]:
    """Names of network interfaces: of a collection, of a text with commas, or none at all for None. Raises ValueError
    naming it for what is none."""
    names = value.split(",") if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, Collection) or not all(isinstance(each, str) and each for each in names):
        raise ValueError(f"{name} is {value!r}, accepted are names of network interfaces")
    return list(names) if isinstance(names, Sequence) else sorted(names)


def renamed(old: str, new: str, value: Any) -> None:
    """Warns the program that gives a value to an argument by its old name."""
    if value is not None:
        warn_user(f"{old} is deprecated: use {new}", DeprecationWarning)
