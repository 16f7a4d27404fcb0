"""Error feedback: the error of compressing a gradient in one step is added to the gradient of the next step.

The engine computes both while it encodes the values (core/collectives/allreduce_compressed.cc). This module holds the
memory. Sources: F. Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
training of speech DNNs", Interspeech 2014; S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient
compression schemes", ICML 2019.
"""

from typing import Any

import torch


class Residuals:
    """Compression errors of this rank: one float32 tensor per gradient, different on every rank.

    They are not part of the optimizer's state: they are neither pickled nor in ``state_dict``. A run that resumes from
    a checkpoint starts with zeros, which costs at most one step's rounding error.
    """

    def __init__(self) -> None:
        self._held: dict[Any, torch.Tensor] = {}

    def of(self, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Return the contiguous residual for ``tensor``, of the same size.

        It is the one of the last step, or zeros if the key is new or its tensor has changed shape or device.
        """
        held = self._held.get(key)
        if held is None or held.shape != tensor.shape or held.device != tensor.device:
            held = self._held[key] = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
        return held

    def clear(self) -> None:
        """Discard all residuals, so that the next step starts with zeros."""
        self._held.clear()
