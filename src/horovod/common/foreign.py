"""Recognition of other libraries' arrays, for all frontends, without importing these libraries."""

_IMMUTABLE = ("jax", "jaxlib", "tensorflow")


def library(kind: type) -> str:
    """Return the package of a class: ``torch`` for torch.Tensor."""
    return kind.__module__.partition(".")[0]


def is_immutable(array: object) -> bool:
    """Return True if the array belongs to a library whose arrays must not be modified."""
    return library(type(array)) in _IMMUTABLE


def kind_of(array: object) -> str:
    """Return the full name of the value's class, for messages."""
    kind = type(array)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
