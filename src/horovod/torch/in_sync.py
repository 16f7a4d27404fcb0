"""Comparison of models, optimizers and tensors between ranks, based on ``horovod.common.in_sync``."""

import ctypes
import weakref
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm as TorchSyncBatchNorm
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from horovod.common import in_sync
from horovod.common.faces import TORCH as face
from horovod.common.in_sync import fingerprints
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.ops.tensors import plain
from horovod.torch.sync_batch_norm import SyncBatchNorm

strategies: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Training strategies (``horovod.strategies``), whose ranks may have different parameters while they train."""


def check_in_sync(
    *objects: Any, process_set: ProcessSet = global_process_set, ignore: Collection[str] = (), **named: Any
) -> str:
    """Check that all ranks hold the same values, bit for bit. All ranks of the set must call it.

    Running statistics of normalization layers that are not synchronized usually differ between ranks and are skipped.
    So are parameters that may differ at this step by a training strategy such as ``LocalSGD``; of an optimizer with a
    strategy only the options and the shared parameters are compared.

    Args:
        *objects: Models, optimizers, schedulers and other objects with ``state_dict()``; tensors, numbers, strings,
            None; and dicts and lists of these.
        process_set (ProcessSet): Ranks to compare. Default: all ranks.
        ignore (Collection[str]): Further entries to skip, as paths or patterns such as ``["model.head.*"]``.
        **named: More objects, whose keywords become their names in the error message.

    Returns:
        str: SHA-256 of the compared values, in hexadecimal.

    Raises:
        OutOfSyncError: Values differ. Raised on all ranks; the message names the first difference, as in
            ``scheduler.last_epoch`` or ``optimizer.state[3].exp_avg``, the ranks, and small values.
        ValueError: An argument contains nothing that can be compared.
        HorovodInternalError: A rank was lost.
    """
    return in_sync.check(
        lambda: fingerprints.table(
            fingerprints.named(objects, named, _name_of), _read, fingerprints.check_ignore(ignore)
        ),
        process_set,
        face,
    )


def check_after_step(optimizer: Any, names: Mapping[torch.Tensor, str], process_set: ProcessSet, steps: int) -> None:
    """Compare ranks after a step, if HOROVOD_CHECK_IN_SYNC_STEPS requests it.

    ``names`` has the names of the optimizer's parameters. ``steps`` is the number of completed steps.
    """
    job = face.require_job()
    if job.check_steps and steps % job.check_steps == 0:
        parameters = {name: parameter for parameter, name in names.items()}
        check_in_sync(process_set=process_set, optimizer=optimizer, parameters=parameters)


def _name_of(value: Any) -> str:
    for kind, name in (
        (torch.nn.Module, "model"),
        (torch.optim.Optimizer, "optimizer"),
        ((LRScheduler, ReduceLROnPlateau), "scheduler"),
    ):
        if isinstance(value, kind):  # type: ignore[arg-type]
            return name
    return type(value).__name__


def _read(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _read_tensor(value)
    if isinstance(value, torch.nn.Module):
        return _model_state(value)
    if isinstance(value, torch.optim.Optimizer):
        strategy = getattr(value, "_hvd_strategy", None)
        state = torch.optim.Optimizer.state_dict(value) if strategy is not None else value.state_dict()
        if strategy is not None:
            return {"param_groups": state["param_groups"], "strategy": strategy.common()}
        return {"param_groups": state.pop("param_groups"), **state}  # report first what the user has set
    return value


def _model_state(model: torch.nn.Module) -> dict[str, Any]:
    differing = {flat.data_ptr() for one in strategies if not one.in_sync for flat in one.vector.flats}
    state = dict(model.state_dict())
    if differing:
        state = {name: value for name, value in state.items() if value.data_ptr() not in differing}
    for prefix, module in model.named_modules():
        if isinstance(module, _NormBase) and not isinstance(module, SyncBatchNorm | TorchSyncBatchNorm):
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                state.pop(f"{prefix}.{name}" if prefix else name, None)
    return state


def _read_tensor(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return {"indices": tensor.indices(), "values": tensor.values()}
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.is_meta:
        return fingerprints.Array(dtype, shape, b"", list)
    flat = plain(tensor.cpu().resolve_conj()).reshape(-1)
    size = flat.numel() * flat.element_size()
    data = (ctypes.c_char * size).from_address(flat.data_ptr()) if size else b""
    return fingerprints.Array(dtype, shape, data, flat.tolist)  # flat.tolist keeps the memory alive
