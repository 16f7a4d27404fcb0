"""A list of arrays as one flat vector, and what the strategies need from an array library.

``arrays`` and ``tensors`` have the implementations for NumPy and PyTorch.
"""

from collections.abc import Sequence
from typing import Any

from horovod.strategies.layout import segments


class Vector:
    """The trained arrays as one flat vector.

    Args:
        flats: The arrays as one-dimensional views of their memory.

    Attributes:
        hvd: The frontend's module, such as ``horovod.torch``.
        sizes: Number of elements of each array.
        total: Number of elements of the vector.
        dtype: Name of the vector's dtype: "float64" if an array has it, otherwise "float32".
    """

    hvd: Any
    dtype: str

    def __init__(self, flats: Sequence[Any]) -> None:
        self.flats = list(flats)
        self.sizes = [len(flat) for flat in self.flats]
        self.total = sum(self.sizes)

    def read(self, start: int = 0, stop: int | None = None) -> Any:
        """Return a copy of the elements from ``start`` to ``stop``."""
        stop = self.total if stop is None else stop
        return self.gather(self.flats, start, stop)

    def gather(self, flats: Sequence[Any], start: int, stop: int) -> Any:
        """Return the elements ``start`` to ``stop`` of ``flats``, which has the vector's layout; None means zeros."""
        copy = self.zeros(stop - start)
        for index, low, high, offset in segments(self.sizes, start, stop):
            if (flat := flats[index]) is not None:
                copy[offset : offset + high - low] = flat[low:high]
        return copy

    def write(self, values: Any, start: int = 0) -> None:
        """Overwrite the elements from ``start`` on."""
        for index, low, high, offset in segments(self.sizes, start, start + len(values)):
            self.flats[index][low:high] = values[offset : offset + high - low]

    # Differences between array libraries.

    def zeros(self, size: int) -> Any:
        """Return a new vector of zeros."""
        raise NotImplementedError

    def half(self, values: Any) -> Any:
        """Return the values as float16."""
        raise NotImplementedError

    def full(self, values: Any) -> Any:
        """Return the values in the vector's dtype."""
        raise NotImplementedError

    def rows(self, values: Any, count: int) -> Any:
        """Return a new array with ``count`` rows, each equal to ``values``."""
        raise NotImplementedError

    def message(self, header: Sequence[float], values: Any) -> Any:
        """Return a message, as bytes, of float64 numbers and values."""
        raise NotImplementedError

    def empty_message(self, header: int, size: int, half: bool) -> Any:
        """Return memory for a message of ``header`` numbers and ``size`` values, which are float16 if ``half``."""
        raise NotImplementedError

    def parse(self, message: Any, header: int, half: bool) -> tuple[list[float], Any]:
        """Return the numbers and the values of a message; the values are a copy in the vector's dtype."""
        raise NotImplementedError
