"""What the tests of this folder run on: a real GPU; to try the tests themselves without one, with
HVD_TEST_GPU=simulated the simulated one, on which PyTorch computes nothing, and with HVD_TEST_GPU=cpu the CPU in its
place."""

import os

import torch

SIMULATED = os.environ.get("HVD_TEST_GPU") == "simulated"
DEVICE = "cpu" if os.environ.get("HVD_TEST_GPU") == "cpu" else "cuda"


def why_not() -> str:
    """Why no test of this folder can run here; empty when they can."""
    if SIMULATED or DEVICE == "cpu" or torch.cuda.is_available():
        return ""
    return "no CUDA GPU here (scripts/gpu-check.sh)"


def gpu(values: torch.Tensor) -> torch.Tensor:
    """A copy on the GPU of a tensor of the CPU."""
    if SIMULATED:
        from tests.torch import simulated_gpu

        return simulated_gpu.gpu(values)
    return values.to(DEVICE, copy=True)


def values(tensor: torch.Tensor) -> torch.Tensor:
    """What the current stream sees of a tensor on the GPU, as one of the CPU."""
    if SIMULATED:
        from tests.torch import simulated_gpu

        return simulated_gpu.values(tensor)
    assert tensor.device.type == DEVICE, tensor.device
    return tensor.detach().cpu()


def same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Of two tensors of the CPU; any NaN is like any other."""
    if tensor.dtype != other.dtype or tensor.shape != other.shape:
        return False
    if tensor.dtype.is_floating_point:
        return torch.equal(tensor.isnan(), other.isnan()) and torch.equal(tensor.nan_to_num(0), other.nan_to_num(0))
    return torch.equal(tensor, other)


def busy(milliseconds: float) -> torch.cuda.Event:
    """Keeps the current stream busy with a kernel that takes about so long, or longer; an event behind it."""
    torch.cuda._sleep(int(milliseconds * 2e6))  # cycles, of at most 2 GHz
    event = torch.cuda.Event()
    event.record()
    return event
