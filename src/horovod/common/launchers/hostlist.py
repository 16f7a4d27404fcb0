"""Parser of Slurm's host lists, such as ``n[1-3,07],login``."""

import itertools
import re

LIMIT = 65536
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand(text: str) -> list[str]:
    """Return the host names in order. Numbers keep leading zeros, and a name may have several brackets.

    Raises:
        ValueError: If the text is invalid or has more than 65536 names.
    """
    names: list[str] = []
    for entry in _split(text):
        pieces = re.split(r"\[([^\[\]]*)\]", entry)  # alternating: outside and inside of brackets
        if any("[" in piece or "]" in piece for piece in pieces):
            raise ValueError(f"host list {text!r}: the brackets in {entry!r} do not match")
        choices = [_numbers(piece, text) if i % 2 else [piece] for i, piece in enumerate(pieces)]
        for combination in itertools.product(*choices):
            names.append("".join(combination))
            if len(names) > LIMIT:
                raise ValueError(f"host list {text!r} has more than {LIMIT} names")
    return names


def _split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    return [entry.strip() for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text) if entry.strip()]


def _numbers(text: str, whole: str) -> list[str]:
    made: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"host list {whole!r}: {part!r} is no number or range of numbers")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= LIMIT:
            raise ValueError(f"host list {whole!r}: {part!r} is no range of at most {LIMIT} numbers that ascends")
        made += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return made


def tasks(text: str) -> list[int]:
    """Return the number of tasks per node: Slurm's ``3(x2),1`` as [3, 3, 1]. Raises ValueError for an invalid text."""
    made: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", part.strip())
        if match is None:
            raise ValueError(f"tasks per node {text!r}: {part!r} is not of the form N or N(xM)")
        made += [int(match[1])] * int(match[2] or 1)
    return made
