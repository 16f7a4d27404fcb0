"""Error feedback: what compression took from a gradient in one step is added to it in the next.

The engine does both while it codes the values (core/collectives/allreduce_compressed.cc); here the memory is kept.
Sources: F. Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed training
of speech DNNs", Interspeech 2014; S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient
compression schemes", ICML 2019.
"""

from typing import Any

import torch


class Residuals:
    """A float32 tensor of what was lost for each gradient: this rank's own, different on every rank.

    It belongs to the run, not to the optimizer's state: it is neither pickled nor in ``state_dict``, so a run that
    resumes from a checkpoint starts with zeros, which costs no more than one step's rounding.
    """

    def __init__(self) -> None:
        self._held: dict[Any, torch.Tensor] = {}

    def of(self, key: Any, tensor: torch.Tensor) -> torch.Tensor:
        """The residual for ``tensor``, contiguous and of its size: the one of the last step, or zeros for a key that
        is new or whose tensor had another shape or was elsewhere."""
        held = self._held.get(key)
        if held is None or held.shape != tensor.shape or held.device != tensor.device:
            held = self._held[key] = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
        return held

    def clear(self) -> None:
        """Forgets all, so that the next step starts with zeros."""
        self._held.clear()
