"""Names of parameters on the wire.

MXNet numbers layers by how many layers a process has created before: ``dense12_weight`` may be ``dense0_weight`` on a
rank that has created no other model. It also sorts parameters as strings, ``dense10_weight`` before ``dense9_weight``,
so positions differ as well. So each number is replaced by its index among the sorted numbers in the same place.
"""

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d+)$")


def on_the_wire(names: Iterable[str]) -> dict[str, str]:
    """Return, for each name, one that does not depend on what else was created before.

    For example, ``dense9_weight`` and ``dense10_weight`` become ``dense0_weight`` and ``dense1_weight``. Different
    names remain different.
    """
    names = list(names)
    seen: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for name in names:
        for before, part in _parts(name):
            if match := _NUMBERED.match(part):
                seen.setdefault((before, match[1]), set()).add((int(match[2]), match[2]))
    places = {key: {text: str(place) for place, (_, text) in enumerate(sorted(found))} for key, found in seen.items()}

    def written(before: str, part: str) -> str:
        match = _NUMBERED.match(part)
        return part if match is None else match[1] + places[before, match[1]][match[2]]

    return {name: "_".join(written(*part) for part in _parts(name)) for name in names}


def _parts(name: str) -> list[tuple[str, str]]:
    """Return (preceding text, part) for each part between underscores."""
    parts = name.split("_")
    return [("_".join(parts[:i]), part) for i, part in enumerate(parts)]


def by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key that orders ``dense9`` before ``dense10``."""
    return [(int(text), "") if text.isdecimal() else (0, text) for text in re.split(r"(\d+)", name)]
