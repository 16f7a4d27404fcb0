"""View of a list of arrays as one flat vector, with the array operations that strategies use.

``arrays`` and ``tensors`` contain the implementations for NumPy and PyTorch.
"""

from collections.abc import Sequence
from typing import Any

from horovod.strategies.rules import segments


class Vector:
    """View of the trained arrays as one flat vector.

    Args:
        flats: The arrays as one-dimensional views of their memory.

    Attributes:
        hvd: The frontend's module, such as ``horovod.torch``.
        sizes: Number of elements of each array.
        total: Number of elements of the vector.
        dtype: Name of the vector's dtype: "float64" if an array has this dtype, otherwise "float32".
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
        """Return elements ``start`` to ``stop`` of the concatenated ``flats``. None stands for an array of zeros."""
        copy = self.zeros(stop - start)
        for index, low, high, offset in segments(self.sizes, start, stop):
            if (flat := flats[index]) is not None:
                copy[offset : offset + high - low] = flat[low:high]
        return copy

    def write(self, values: Any, start: int = 0) -> None:
        """Write ``values`` to the elements that begin at ``start``."""
        for index, low, high, offset in segments(self.sizes, start, start + len(values)):
            self.flats[index][low:high] = values[offset : offset + high - low]

    # The methods below depend on the array library.

    def zeros(self, size: int) -> Any:
        """Return a new vector of zeros."""
        raise NotImplementedError

    def half(self, values: Any) -> Any:
        """Convert the values to float16."""
        raise NotImplementedError

    def full(self, values: Any) -> Any:
        """Convert the values to the vector's dtype."""
        raise NotImplementedError

    def rows(self, values: Any, count: int) -> Any:
        """Return a new array of ``count`` rows, each a copy of ``values``."""
        raise NotImplementedError

    def message(self, header: Sequence[float], values: Any) -> Any:
        """Encode a message as a byte array: ``header`` as float64, followed by ``values``."""
        raise NotImplementedError

    def empty_message(self, header: int, size: int, half: bool) -> Any:
        """Allocate a message of ``header`` header numbers and ``size`` values.

        Use float16 for the values if ``half`` is True.
        """
        raise NotImplementedError

    def parse(self, message: Any, header: int, half: bool) -> tuple[list[float], Any]:
        """Decode a message into its header numbers and a copy of its values in the vector's dtype."""
        raise NotImplementedError
