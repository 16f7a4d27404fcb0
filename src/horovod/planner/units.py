"""Parse and format quantities with units, such as ``25Gbit``, and read the planner's JSON files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def names_in(folder: Path) -> list[str]:
    """Return the names of the bundled JSON files in a folder, without the suffix."""
    return sorted(path.stem for path in folder.glob("*.json"))


def load(kind: type[T], what: str, folder: Path, check: Callable[[T], None], name_or_path: str | Path) -> T:
    """Read a user-supplied file, or load a bundled file by name.

    Args:
        kind: Type of the content.
        what: Noun for the content in messages, such as "profile".
        folder: Folder of the bundled files.
        check: Function that raises ValueError if the content is invalid.
        name_or_path: Path of a user's file, or the name of one of the package's files.

    Raises:
        ValueError: If the content is invalid. The message names the file and the field.
        OSError: If the file cannot be read.
    """
    name = str(name_or_path)
    built_in = names_in(folder)
    path = folder / f"{name}.json" if name in built_in else Path(name)
    if not path.exists():
        raise ValueError(f"no {what} {name!r}: there is no such file, and the built-in ones are {', '.join(built_in)}")
    try:
        content = msgspec.json.decode(path.read_bytes(), type=kind)
        check(content)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{path} is not a {what}: {error}") from None
    return content


_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-z/]*)\s*")
_PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def _parse(text: str, what: str, example: str, scale_of: Callable[[str], float | None]) -> float:
    match = _NUMBER.fullmatch(text)
    scale = scale_of(match[2]) if match else None
    if match is None or scale is None:
        raise ValueError(f"{what} must be a number with a unit, as in {example}, got {text!r}")
    return float(match[1]) * scale


def parse_bandwidth(text: str) -> float:
    """Parse a bandwidth, and return it in bytes per second.

    Args:
        text: Bits per second such as ``25Gbit`` or ``100Mbit/s``, or bytes per second such as ``80GB/s`` or ``1GiB/s``.

    Raises:
        ValueError: If the text is invalid, or the bandwidth is 0.
    """

    def scale_of(unit: str) -> float | None:
        unit = unit.removesuffix("/s").removesuffix("ps")
        for ending, factor in (("bit", 1 / 8), ("B", 1.0)):
            prefix = unit.removesuffix(ending)
            prefix = prefix if prefix.endswith("i") else prefix.upper()
            if unit.endswith(ending) and prefix in {**_PREFIXES, **_BINARY}:
                return {**_PREFIXES, **_BINARY}[prefix] * factor
        return None

    value = _parse(text, "bandwidth", "25Gbit or 80GB/s", scale_of)
    if value <= 0:
        raise ValueError(f"bandwidth must be above 0, got {text!r}")
    return value


def parse_time(text: str) -> float:
    """Parse a duration such as ``10us``, and return it in seconds. Raises ValueError if the text is invalid."""
    return _parse(text, "time", "10us or 0.5ms", _TIMES.get)


def parse_bytes(text: str) -> int:
    """Parse a size such as ``64MiB``, ``64MB`` or ``0``, and return it in bytes. Raises ValueError if it is invalid."""

    def scale_of(unit: str) -> float | None:
        prefix = unit.removesuffix("B")
        return _BINARY.get(prefix) or _PREFIXES.get(prefix.upper())

    return int(_parse(text, "size", "64MiB", scale_of))


def show_bandwidth(bytes_per_second: float) -> str:
    """Format a bandwidth in bytes per second as text such as ``25 Gbit/s``."""
    bits = bytes_per_second * 8
    for unit, scale in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits >= scale:
            return f"{bits / scale:.3g} {unit}" if bits < 1000 * scale else f"{bits / scale:.0f} {unit}"
    return f"{bits:.3g} bit/s"


def show_time(seconds: float) -> str:
    """Format a time in seconds as text such as ``573 ms``."""
    if seconds == 0:
        return "0 ms"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 10:
        return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.1f} s"


def show_bytes(count: float) -> str:
    """Format a number of bytes as text such as ``553 MB``."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"
