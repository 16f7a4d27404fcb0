"""JSON files of profiles and networks, which users create or which ship with the package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def names_in(folder: Path) -> list[str]:
    """Return the names of the files that ship with the package in a folder, without their suffix."""
    return sorted(path.stem for path in folder.glob("*.json"))


def load(kind: type[T], what: str, folder: Path, check: Callable[[T], None], name_or_path: str | Path) -> T:
    """Read a file, or the built-in file with this name.

    Args:
        kind: Type of the content.
        what: Noun for messages, such as "profile".
        folder: Folder of the built-in files.
        check: Function that raises ValueError if the content is invalid.
        name_or_path: Path of a file, or the name of a built-in file.

    Raises:
        ValueError: If the content is not valid; the message names the file and the field.
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
