"""Parameter names and groups of an optimizer, which ranks use to match gradients."""

import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from horovod.common import objects
from horovod.common.compression import check_wire
from horovod.common.frontends import TORCH as frontend
from horovod.common.process_sets import ProcessSet
from horovod.common.training_loop.gradients import parts
from horovod.torch.ops.tensors import CODES

_REDUCED = ", ".join(str(dtype).removeprefix("torch.") for dtype in CODES if dtype.is_floating_point)


def name_parameters(
    param_groups: Sequence[dict[str, Any]], named_parameters: Iterable[Any] | None, first_group: int = 0
) -> dict[torch.Tensor, str]:
    """Return the names of the parameters in ``param_groups``.

    The names are taken from ``named_parameters``. If it is None, they are ``allreduce.noname.<group>.<index>``, where
    groups are numbered from ``first_group``.

    Raises:
        ValueError: If an entry is not a (name, parameter) pair, a name occurs twice, or a parameter has no name.
    """
    if named_parameters is None:
        return {
            p: f"allreduce.noname.{i}.{j}"
            for i, group in enumerate(param_groups, first_group)
            for j, p in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise ValueError(
                "named_parameters must yield (name, parameter) pairs, as model.named_parameters() does, got an entry "
                f"of type {type(pair).__name__}"
            )
        if not isinstance(pair[1], torch.Tensor):
            raise ValueError(f"named_parameters: {pair[0]!r} must be a tensor, got a {type(pair[1]).__name__}")
    repeated = sorted(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    if repeated:
        raise ValueError(f"named_parameters must have unique names, got these more than once: {', '.join(repeated)}")
    names: dict[torch.Tensor, str] = {}
    for name, p in pairs:
        names.setdefault(p, name)
    parameters = [p for group in param_groups for p in group["params"]]
    unnamed = [tuple(p.shape) for p in parameters if p not in names]
    if unnamed:
        raise ValueError(
            f"named_parameters must name all of the optimizer's {len(parameters)} parameters, but {len(unnamed)} are "
            f"missing, with shapes {unnamed[:10]}; name all of them or none"
        )
    return {p: names[p] for p in parameters}


def check_compression(compression: Any, names: dict[torch.Tensor, str], op: int) -> None:
    """Check that ``compression`` supports all trainable parameters.

    Raises:
        ValueError: If a parameter is not supported. The message names the first one.
    """
    for p, name in names.items():
        if p.requires_grad:
            check_wire(compression, p, op, f"DistributedOptimizer, parameter {name!r}")


def check_dtypes(names: dict[torch.Tensor, str]) -> None:
    """Check that the gradients of all trainable parameters can be reduced.

    Raises:
        ValueError: If a parameter's dtype is not supported. The message names the first one.
    """
    for p, name in names.items():
        if p.requires_grad and p.dtype not in CODES:
            dtype = str(p.dtype).removeprefix("torch.")
            hint = "; keep a complex one as torch.view_as_real(parameter)" if p.dtype.is_complex else ""
            raise ValueError(
                f"DistributedOptimizer, parameter {name!r}: the dtype must be one of {_REDUCED}, got {dtype}{hint}"
            )


def make_groups(
    groups: int | Sequence[Sequence[torch.Tensor]] | None,
    parameters: list[torch.Tensor],
    names: dict[torch.Tensor, str],
    process_set: ProcessSet,
) -> list[list[torch.Tensor]]:
    """Return the groups of parameters to reduce together, which the first rank of the process set chooses."""
    if not groups:
        return []
    if isinstance(groups, int):
        local_groups: list[list[str]] = [
            [names[p] for p in part] for part in parts([p for p in parameters if p.requires_grad], groups)
        ]
    else:
        local_groups = [[names[p] for p in group if p in names and p.requires_grad] for group in groups]
    assert process_set.ranks is not None
    agreed = objects.broadcast_object(
        local_groups, process_set.ranks[0], "DistributedOptimizer.groups", process_set, frontend=frontend
    )
    by_name = {name: p for p, name in names.items()}
    unknown = [name for group in agreed for name in group if name not in by_name]
    if unknown:
        raise ValueError(
            f"groups must name parameters that exist on all ranks, but rank {process_set.ranks[0]} has {unknown}, "
            f"which rank {frontend.require_job().rank} does not have"
        )
    return [[by_name[name] for name in group] for group in agreed if group]


class Members:
    """Parameter names of an optimizer, kept up to date with ``param_groups``.

    Programs can call ``add_param_group``, but also append to a group's list, or replace lists and groups. The optimizer
    updates all parameters in ``param_groups``, so all their gradients must be reduced.
    """

    def __init__(self, optimizer: Any, names: dict[torch.Tensor, str]) -> None:
        self.names = names
        self._optimizer = weakref.ref(optimizer)
        self._remember(optimizer.param_groups)

    def _remember(self, groups: Sequence[dict[str, Any]]) -> None:
        self._lists = [list(group["params"]) for group in groups]
        self._single = [[i for i, p in enumerate(params) if p.numel() == 1] for params in self._lists]

    def take_in(self, reducer: Any) -> None:
        """Find new parameters in ``param_groups``, and add them to ``reducer`` unless it is None.

        All ranks must have the same new parameters. If there are none, the call takes only a few ns per parameter, so
        it is cheap enough for every step.

        Raises:
            ValueError: If the gradients of a parameter cannot be reduced, or the compression does not support it. No
                parameter is added in this case.
        """
        optimizer = self._optimizer()
        if optimizer is None or self._is_as_remembered(optimizer.param_groups):
            return
        used = set(self.names.values())
        new = {}
        for p, name in name_parameters(optimizer.param_groups, None).items():
            # A removed parameter keeps its name in case the program adds it again.
            if p not in self.names:
                while name in used:
                    name += "'"
                new[p] = name
        if reducer is not None:
            check_dtypes(new)
            check_compression(reducer.options.compression, new, reducer.options.op)
        self.names.update(new)
        self._remember(optimizer.param_groups)
        if new and reducer is not None:
            reducer.add(new, unique_on_the_wire(optimizer, new, reducer.options.process_set))

    def _is_as_remembered(self, groups: Sequence[dict[str, Any]]) -> bool:
        if len(groups) != len(self._lists):
            return False
        for group, before, single in zip(groups, self._lists, self._single, strict=True):
            params = group["params"]
            try:
                # Compare whole lists first, which is fastest: Python treats identical objects as equal, and comparing
                # two different tensors raises an exception. One-element tensors do not raise, so compare those (at
                # positions `single`) by identity.
                if params != before or any(params[i] is not before[i] for i in single):
                    return False
            except RuntimeError:
                return False
        return True


class _UsedNames:
    """Gradient names in use within one process set of one job."""

    __slots__ = ("by_optimizer", "counts", "job")

    def __init__(self, job: Any) -> None:
        self.job = job
        self.counts: Counter[str] = Counter()
        self.by_optimizer: WeakKeyDictionary[Any, dict[torch.Tensor, str]] = WeakKeyDictionary()


_used_names: "WeakKeyDictionary[ProcessSet, _UsedNames]" = WeakKeyDictionary()


def unique_on_the_wire(
    optimizer: Any, names: dict[torch.Tensor, str], process_set: ProcessSet
) -> dict[torch.Tensor, str]:
    """Return names that no other optimizer of this process set uses.

    Models often have parameters with equal names. The first optimizer uses a name unchanged, and later optimizers
    append ``#1``, ``#2`` and so on. All ranks must therefore wrap their optimizers in the same order. An optimizer that
    is wrapped again keeps its names.
    """
    used = _used_names.get(process_set)
    if used is None or used.job is not frontend.job:
        used = _used_names[process_set] = _UsedNames(frontend.job)
    before = used.by_optimizer.get(optimizer, {})
    result = {}
    for p, name in names.items():
        earlier = before.get(p)
        if earlier is not None and (earlier == name or earlier.startswith(name + "#")):
            result[p] = earlier
            continue
        count = used.counts[name]
        used.counts[name] += 1
        result[p] = f"{name}#{count}" if count else name
    used.by_optimizer[optimizer] = {**before, **result}
    return result
