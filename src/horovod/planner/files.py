"""JSON files with profiles and networks, created by users or included in the package."""

from __future__ import annotations

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
