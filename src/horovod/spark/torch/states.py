"""State of a model and its optimizer as bytes that load without running code: only tensors and plain values."""

import io
import pickle
from typing import Any

import torch


def dump(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, epoch: int) -> bytes:
    """Serialize the state dicts as a dict with ``model``, ``optimizer`` and ``epoch``.

    Both ``load`` and ``torch.load(weights_only=True)`` can read it.
    """
    stream = io.BytesIO()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict() if optimizer else None, "epoch": epoch}
    torch.save(state, stream)
    return stream.getvalue()


def load(data: bytes, where: str) -> dict[str, Any]:
    """Load bytes from ``dump``.

    Args:
        data: The bytes.
        where: Their origin, for messages.

    Raises:
        ValueError: If the data are damaged, or contain anything except tensors and plain values.
    """
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)  # type: ignore[no-any-return]
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise ValueError(
            f"{where} is no state of a model that can be loaded with weights_only=True: {error}"
        ) from error


def put_into(
    state: dict[str, Any], model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, where: str
) -> None:
    """Load a state from ``load`` into model and optimizer; raise ValueError if it belongs to another model."""
    try:
        model.load_state_dict(state["model"])
        if optimizer is not None and state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise ValueError(f"{where} is the state of another model: {error}") from error
