"""The device of the tests in this folder: a real GPU by default.

HVD_TEST_GPU=simulated uses the simulated GPU, on which PyTorch computes nothing, and HVD_TEST_GPU=cpu the CPU, to
try the tests without a GPU.
"""

import os

import torch

SIMULATED = os.environ.get("HVD_TEST_GPU") == "simulated"
DEVICE = "cpu" if os.environ.get("HVD_TEST_GPU") == "cpu" else "cuda"


def obstacle() -> str:
    """Return why no test of this folder can run here; empty if they can."""
    if SIMULATED or DEVICE == "cpu" or torch.cuda.is_available():
        return ""
    return "no CUDA GPU here (scripts/gpu-check.sh)"


def gpu(values: torch.Tensor) -> torch.Tensor:
    """Return a copy of a CPU tensor on the GPU."""
    if SIMULATED:
        from tests.torch import simulated_gpu

        return simulated_gpu.gpu(values)
    return values.to(DEVICE, copy=True)


def values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a GPU tensor's values, as the current stream sees them, as a CPU tensor."""
    if SIMULATED:
        from tests.torch import simulated_gpu

        return simulated_gpu.values(tensor)
    assert tensor.device.type == DEVICE, tensor.device
    return tensor.detach().cpu()


def same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return True if two CPU tensors have the same bits; all NaNs are equal."""
    if tensor.dtype != other.dtype or tensor.shape != other.shape:
        return False
    if tensor.dtype.is_floating_point:
        return torch.equal(tensor.isnan(), other.isnan()) and torch.equal(tensor.nan_to_num(0), other.nan_to_num(0))
    return torch.equal(tensor, other)


def busy(milliseconds: float) -> torch.cuda.Event:
    """Keep the current stream busy with a kernel for at least about this time; return an event after it."""
    torch.cuda._sleep(int(milliseconds * 2e6))  # cycles, at most 2 GHz
    event = torch.cuda.Event()
    event.record()
    return event
