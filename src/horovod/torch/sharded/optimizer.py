"""ShardedOptimizer, which shards an element-wise optimizer's state over the ranks."""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import torch

from horovod.common.compression import refuse_wire
from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import Average, Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.gradients import check_passes
from horovod.common.training_loop.steps import marks
from horovod.common.training_loop.weights import refuse_weights
from horovod.torch.compression import Compression
from horovod.torch.functions import allgather_object
from horovod.torch.ops.alltoall import alltoall
from horovod.torch.optimizer import override
from horovod.torch.reducer.parameter_names import check_dtypes, name_parameters, unique_on_the_wire
from horovod.torch.sharded.gathers import track
from horovod.torch.sharded.shards import Shards

ELEMENTWISE = frozenset(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "RAdam", "Adadelta", "Rprop")
)
"""Optimizers that update each element of a parameter independently of the others."""


def ShardedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    *,
    elementwise: bool = False,
    process_set: ProcessSet = global_process_set,
    overlap: torch.nn.Module | None = None,
) -> Any:
    """Shard the optimizer's state over the ranks (ZeRO stage 1), and return ``optimizer``.

    Use it in place of ``DistributedOptimizer`` if the optimizer's state does not fit in the memory of one worker. Each
    rank owns 1/n of the elements of all parameters: gradients are reduced to their owners during ``backward()``, each
    rank updates its elements, and ``step()`` gathers the parameters. The result equals ``DistributedOptimizer``.

    ``backward()`` releases ``param.grad`` after the reduction, so clip gradients with ``optimizer.clip_grad_norm_``.
    Gradients are discarded by ``step()``, also without ``zero_grad()``. ``param_groups`` holds this rank's parts of the
    parameters. Parameters become contiguous views of common memory; do not move the model afterwards. All ranks must
    start with equal parameters and call ``step``, ``clip_grad_norm_`` and ``state_dict`` together.

    Args:
        optimizer (torch.optim.Optimizer): Optimizer of one of the classes in
            ``horovod.torch.sharded.optimizer.ELEMENTWISE``, not wrapped yet. Existing state is divided as well.
        named_parameters (Iterable[tuple[str, torch.Tensor]], optional): Names of the parameters, the keys of
            ``state_dict()``. Default: names by position.
        compression (Compressor): Compression of gradients, such as ``Compression.fp16``; the ``wire_*`` compressors are
            not accepted. Default: none.
        backward_passes_per_step (int): Number of backward passes over which gradients accumulate locally; the last one
            reduces them. Default: 1.
        op (int): ``Average`` (default) or ``Sum``.
        elementwise (bool): True asserts that an optimizer of another class updates each element independently of the
            others. Default: False.
        process_set (ProcessSet): Ranks that take part, including this one. Default: all ranks.
        overlap (torch.nn.Module, optional): Model whose next forward pass overlaps with the gathering of parameters.
            ``step()`` then returns early, and each module waits for its parameters. Reading parameters by other
            references than the model's requires ``optimizer.wait_for_parameters()`` first. Default: ``step()`` waits.

    Returns:
        torch.optim.Optimizer: ``optimizer``, with methods ``clip_grad_norm_`` and ``wait_for_parameters``.

    Raises:
        ValueError: If an argument is invalid, or the optimizer is not known to be element-wise.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    if hasattr(optimizer, "_hvd_plain"):
        raise ValueError("optimizer must be a plain torch optimizer, got one that Horovod has wrapped already")
    if type(optimizer) not in ELEMENTWISE and not elementwise:
        raise ValueError(
            f"optimizer must update each element independently, got {type(optimizer).__name__}, which is not known to: "
            "optimizers that use norms or factors of whole tensors (LAMB, LARS, Adafactor, Muon) would compute other "
            "results on parts of them. Use hvd.DistributedOptimizer, or pass elementwise=True if it is element-wise"
        )
    if "step" in vars(optimizer):
        # A learning rate scheduler has wrapped the original step(), which would update only this rank's elements.
        raise ValueError("optimizer must be sharded before its learning rate scheduler is created; swap the two lines")
    if op not in (Average, Sum):
        raise ValueError(f"op must be hvd.Average or hvd.Sum, got {op!r}")
    if not isinstance(overlap, torch.nn.Module | None):
        raise ValueError(f"overlap must be a torch.nn.Module or None, got a {type(overlap).__name__}")
    refuse_wire(compression, "ShardedOptimizer")
    passes = check_passes(backward_passes_per_step)
    names = name_parameters(optimizer.param_groups, named_parameters)
    frontend.require_job()
    check_dtypes(names)
    for p, name in names.items():
        if not p.is_floating_point() or p.layout is not torch.strided:
            raise ValueError(f"parameter {name!r} must be dense and floating-point, got {p.dtype} and {p.layout}")
    groups = [group["params"] for group in optimizer.param_groups]
    key = next(iter(names))
    wire = unique_on_the_wire(optimizer, {key: "sharded"}, process_set)[key]
    tracked = None if overlap is None else track(overlap)
    shards = Shards(groups, names, wire, compression, op, passes, process_set, tracked)
    before = dict(optimizer.state)
    _assign(optimizer, shards)
    override(optimizer, _Sharded)
    sharded: Any = optimizer
    sharded._install({names[p]: entries for p, entries in before.items() if p in names})
    return optimizer


def divide_again(optimizer: Any) -> None:
    """Reshard the parameters after the job's ranks have changed.

    This discards the optimizer's state.
    """
    old: Shards = optimizer._hvd_shards
    old.close()
    groups = [
        [p for p, g in zip(old.parameters, old.group_of, strict=True) if g == i]
        for i in range(len(optimizer.param_groups))
    ]
    same = old.names, old.wire, old.compression, old.op, old.passes, old.process_set, old.tracked
    _assign(optimizer, Shards(groups, *same))


def _assign(optimizer: Any, shards: Shards) -> None:
    """Restrict ``optimizer`` to the elements of ``shards`` that this rank owns."""
    optimizer.state.clear()
    for i, group in enumerate(optimizer.param_groups):
        group["params"] = [tensor for segment, tensor, _ in shards.owned if shards.group_of[segment.index] == i]
        group.pop("param_names", None)
    optimizer.param_groups[0]["params"].append(shards.guard)
    optimizer._hvd_shards = shards


class _Sharded:
    """Methods of the wrapped optimizer that a sharded optimizer overrides."""

    _hvd_shards: Shards
    _hvd_plain: type
    param_groups: list[dict[str, Any]]
    state: Any

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Reduce gradients if necessary, update this rank's elements, and gather the parameters.

        With ``overlap``, this method does not wait until the parameters are gathered.

        Args:
            closure (Callable, optional): Function that computes the loss and the gradients, called once.

        Returns:
            The loss that the closure returned on this rank, or None.

        Raises:
            ValueError: If the step runs in an ``hvd.weight`` block or ``hvd.sync`` loop.
            RuntimeError: If a parameter's memory was replaced.
            HorovodInternalError: If a rank was lost.
        """
        refuse_weights()
        shards, loss = self._hvd_shards, None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        shards.check_memory()
        shards.synchronize()
        shards.gathers.wait()
        super().step()  # type: ignore[misc]
        shards.gathers.run()
        shards.reset()
        marks.optimizer(self)
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # the plain class's step, called here, runs the hooks

    def synchronize(self) -> None:
        """Reduce the gradients now. Only a rank that has run fewer backward passes than the others needs this."""
        self._hvd_shards.synchronize()

    def wait_for_parameters(self) -> None:
        """Wait until the parameters of the last step are complete.

        With ``overlap``, reading a parameter from a module waits automatically. Call this method before code that
        accesses parameters in another way, for example through an existing list.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        self._hvd_shards.gathers.wait()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard all gradients, including reduced ones."""
        self._hvd_shards.recover()
        for p in self._hvd_shards.parameters:
            p.grad = None
        self._hvd_shards.reset()

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients' total 2-norm over all ranks to ``max_norm``, and return the norm before clipping.

        All ranks must call this between ``backward()`` and ``step()``, with GradScaler after ``unscale_``.

        Args:
            max_norm (float): Maximum norm.

        Returns:
            torch.Tensor: Norm before clipping, over each element of the model once.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        shards = self._hvd_shards
        shards.synchronize()
        norm = shards.norm()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0).item()
        for _, tensor, _ in shards.owned:
            if tensor.grad is not None:
                tensor.grad.mul_(factor)
        return norm

    def state_dict(self, folder: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Return the state of the whole optimizer on the first rank, and only the options on all other ranks.

        All ranks must call this. The state is keyed by parameter name, and is gathered tensor by tensor in host memory.
        A plain, distributed or sharded optimizer can load the state, with any number of ranks.

        Args:
            folder (str or path, optional): Folder on a disk for temporary files, if the state does not fit in the
                memory of the first rank. Tensors are then mapped from these files, which have no names and end with
                the tensors. Default: tensors are in memory.

        Returns:
            dict[str, Any]: Dictionary as returned by the original optimizer, but with names in place of numbers.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        shards = self._hvd_shards
        shards.gathers.wait()
        mine: dict[int, dict[str, Any]] = {}
        own = {segment.index: (segment, self.state.get(tensor, {})) for segment, tensor, _ in shards.owned}
        for index, (segment, entries) in own.items():
            length = segment.stop - segment.start
            mine[index] = {
                key: (value.dtype,) if is_sharded(value, length) else value for key, value in entries.items()
            }
        everything = allgather_object(mine, f"{shards.wire}.state", shards.process_set)
        state: dict[str, dict[str, Any]] = {}
        for index, p in enumerate(shards.parameters):
            described = next((one[index] for one in everything if one.get(index)), {})
            for key, value in described.items():
                if type(value) is tuple:
                    value = self._collect(index, key, value[0], own.get(index, (None, {}))[1])
                if shards.rank == 0:
                    if folder is not None and type(value) is torch.Tensor and value.numel() > 1:
                        value = _in_file(value, folder)
                    entry = value.view(p.shape) if isinstance(value, torch.Tensor) and value.dim() else value
                    state.setdefault(shards.names[p], {})[key] = entry
        groups = []
        for i, group in enumerate(self.param_groups):
            names = [shards.names[p] for p, g in zip(shards.parameters, shards.group_of, strict=True) if g == i]
            groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": names})
        return {"state": state, "param_groups": groups}

    def _collect(self, index: int, key: str, dtype: torch.dtype, entries: dict[str, Any]) -> torch.Tensor:
        shards = self._hvd_shards
        part = entries[key].detach().cpu() if key in entries else torch.empty(0, dtype=dtype)
        splits = [part.numel()] + [0] * (shards.ranks - 1)
        gathered = alltoall(part.contiguous(), splits, f"{shards.wire}.state.{index}.{key}", shards.process_set)
        return gathered[0] if isinstance(gathered, tuple) else gathered

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of a sharded, distributed or plain optimizer. Each rank keeps only its part.

        Args:
            state_dict (dict[str, Any]): Complete state, the same on all ranks, such as the result of ``torch.load(path,
                mmap=True)``. The dictionary that ``state_dict`` returns on ranks other than the first is incomplete.

        Raises:
            ValueError: If the state belongs to other parameters.
        """
        shards = self._hvd_shards
        saved = state_dict["param_groups"]
        sizes = [shards.group_of.count(i) for i in range(len(self.param_groups))]
        if [len(group["params"]) for group in saved] != sizes:
            raise ValueError(
                f"state_dict must have groups of {sizes} parameters, got {[len(group['params']) for group in saved]}"
            )
        keys = [key for group in saved for key in group["params"]]
        named = all(isinstance(key, str) for key in keys)
        own = set(shards.names.values())
        if named and set(keys) != own:
            raise ValueError(f"state_dict must have the parameters of this model, got other ones: {set(keys) ^ own}")
        to_name = dict(zip(keys, keys if named else (shards.names[p] for p in shards.parameters), strict=True))
        state = {to_name[key]: entries for key, entries in state_dict["state"].items()}
        for group, other in zip(self.param_groups, saved, strict=True):
            group.update({k: v for k, v in other.items() if k not in ("params", "param_names")})
        shards.gathers.wait()
        shards.reset()
        self._install(state)

    def _install(self, state: dict[str, dict[str, Any]]) -> None:
        shards = self._hvd_shards
        self.state.clear()
        for segment, tensor, _ in shards.owned:
            entries = state.get(shards.names[shards.parameters[segment.index]])
            if entries:
                self.state[tensor] = {key: shards.slice(segment, key, value) for key, value in entries.items()}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise ValueError, because parameters cannot be added to a sharded optimizer.

        Raises:
            ValueError: Always raised.
        """
        raise ValueError("add_param_group must be called before hvd.ShardedOptimizer")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a sharded optimizer cannot be copied or pickled, because each rank has a part of it; use state_dict()"
        )


def _in_file(tensor: torch.Tensor, folder: str | os.PathLike[str]) -> torch.Tensor:
    """Copy a tensor to an unnamed file, so that it does not occupy this process's memory."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(tensor.nbytes)
        memory = mmap.mmap(file.fileno(), tensor.nbytes)
    copy = torch.frombuffer(memory, dtype=tensor.dtype).copy_(tensor.view(-1))
    # Release the pages from this process's memory. Their contents stay in the page cache of the file.
    memory.madvise(mmap.MADV_DONTNEED)
    return copy


def is_sharded(value: Any, length: int) -> bool:
    """Return True if a state entry contains one value for each of the ``length`` elements of a parameter or shard."""
    return isinstance(value, torch.Tensor) and value.dim() == 1 and value.numel() == length
