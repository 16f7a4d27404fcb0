"""A model's and its optimizer's state as bytes: tensors and plain values, which load without running code."""

import io
import pickle
from typing import Any

import torch


def dump(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, epoch: int) -> bytes:
    """For ``load``, and for ``torch.load(weights_only=True)``: a dict of ``model``, ``optimizer`` and ``epoch``."""
    stream = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict() if optimizer else None, "epoch": epoch}
    torch.save(state, stream)
    return stream.getvalue()


def load(data: bytes, where: str) -> dict[str, Any]:
    """Raises ValueError naming ``where`` the bytes are from when they are torn, or hold more than tensors and plain
    values."""
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{where} is no state of a model that can be loaded with weights_only=True: {error}"
        ) from error


def put_into(
    state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, where: str
) -> None:
    """Raises ValueError for the state of another model."""
    try:
        model.load_state_dict(state["model"])
        if optimizer is not None and state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(f"{where} is the state of another model: {error}") from error
