"""Arrays of other libraries than a face's own: what every face knows of them without importing any."""

_IMMUTABLE = ("jax", "jaxlib", "tensorflow")


def library(kind: type) -> str:
    """The package that a class is from: ``torch`` for torch.Tensor."""
    return kind.__module__.partition(".")[0]


def is_immutable(array: object) -> bool:
    """Is it of a library whose arrays must not change?"""
    return library(type(array)) in _IMMUTABLE


def kind_of(array: object) -> str:
    """For messages: the full name of its class."""
    kind = type(array)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
