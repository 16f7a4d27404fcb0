"""Checks of arguments to functions that start jobs, such as `horovod.run`. Pure, except for warnings."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

from horovod.common.contract.log import warn_user


def integer(name: str, value: Any, least: int) -> int:
    """Return the value. Raises ValueError naming it unless it is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return value


def seconds(name: str, value: Any, most: float = sys.float_info.max) -> float:
    """Return the value as float. Raises ValueError naming it unless it is a number above 0 and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        finite, limit = ("finite ", "") if most == sys.float_info.max else ("", f" and at most {most:.0f}")
        raise ValueError(f"{name} must be a {finite}number of seconds above 0{limit}, got {value!r}")
    return float(value)


def interfaces(name: str, value: Any) -> list[str]:
    """Return names of network interfaces.

    Args:
        name: Name of the argument, for messages.
        value: A collection of names, a string of names separated by commas, or None for no names.

    Raises:
        ValueError: The value is none of these.
    """
    names = value.split(",") if isinstance(value, str) else [] if value is None else value
    if not isinstance(names, Collection) or not all(isinstance(each, str) and each for each in names):
        raise ValueError(f"{name} must be names of network interfaces, got {value!r}")
    return list(names) if isinstance(names, Sequence) else sorted(names)


def renamed(old: str, new: str, value: Any) -> None:
    """Issue a DeprecationWarning if an argument was given by its old name, that is, if `value` is not None."""
    if value is not None:
        warn_user(f"{old} is deprecated: use {new}", DeprecationWarning)
