"""Names of operations in the form that users know. Pure.

A name on the wire is ``<kind>.<name>``, or ``<kind>.noname.<number>`` if the program gave none. The PyTorch frontend
names its internal operations after the first gradient that they concern (``gradients.bucket.<name>``). Gradients that
the program did not name are ``allreduce.noname.<group>.<index>``.
"""

import re

_KINDS = "allreduce|allgather|broadcast|alltoall|reducescatter|barrier|join"
_UNNAMED = re.compile(rf"((?:grouped_)?(?:{_KINDS}))\.noname(?:\.|$)")
_UNNAMED_GRADIENT = re.compile(r"allreduce\.noname\.(\d+)\.(\d+)")
_OF_GRADIENTS = {
    "gradients.bucket.": "the gradient bucket",
    "gradients.ready.": "the readiness flags of gradients",
    "gradients.order.": "the agreed order of gradients",
}
_ALONE = ("barrier", "join")
"""Kinds whose name adds no information."""


def described(kind: str, name: str) -> str:
    """Return the description of an operation for use in a sentence.

    Args:
        kind: Kind as recorded, for example "allreduce"; empty if unknown.
        name: Name on the wire, possibly truncated.

    Returns:
        For example "allreduce 'loss'", "an unnamed allreduce", "the gradient bucket from 'fc.weight' on".
    """
    for prefix, text in _OF_GRADIENTS.items():
        if name.startswith(prefix):
            return f"{text} from {short(name.removeprefix(prefix))} on"
    if _UNNAMED_GRADIENT.fullmatch(name):
        return short(name)
    if found := _UNNAMED.match(name):
        return found[1] if found[1] in _ALONE else f"an unnamed {found[1]}"
    return f"{kind} {_quoted(name.removeprefix(f'{kind}.'))}" if kind else _quoted(name)


def short(name: str) -> str:
    """Return the name without its kind, quoted; or a description if the program gave no name."""
    if found := _UNNAMED_GRADIENT.fullmatch(name):
        return f"gradient {found[2]} of parameter group {found[1]} (no name)"
    if name.startswith(tuple(_OF_GRADIENTS)) or _UNNAMED.match(name):
        return described("", name)
    return _quoted(re.sub(rf"^(?:{_KINDS})\.", "", name))


def _quoted(name: str) -> str:
    """Return the name quoted, with unprintable characters escaped."""
    if not name.isprintable():
        name = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return f"'{name}'"
