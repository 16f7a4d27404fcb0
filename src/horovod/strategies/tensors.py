"""Training strategies for PyTorch, exported by ``horovod.torch``."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

import horovod.torch as hvd
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.training_loop.steps import marks
from horovod.strategies.averaging import GossipRounds, Rounds
from horovod.strategies.rules import AVERAGING, Graph, OuterSGD, Schedule, Vector, segments
from horovod.strategies.serving import Serving, Store
from horovod.torch.monitoring import check_after_step, strategies
from horovod.torch.optimizer import override

Strategy = Rounds | GossipRounds | Serving


class TensorVector(Vector):
    """``Vector`` of an optimizer's parameters, which must be dense, contiguous, floating-point and on one device."""

    hvd = hvd

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for index, p in enumerate(self.parameters):
            if not p.is_floating_point() or p.layout is not torch.strided or not p.is_contiguous():
                raise ValueError(
                    f"parameters must be dense, contiguous and floating-point, got parameter {index} of shape "
                    f"{tuple(p.shape)}, dtype {p.dtype} and layout {p.layout}"
                )
        devices = {p.device for p in self.parameters}
        if len(devices) != 1:
            raise ValueError(f"parameters must be on one device, got {sorted(map(str, devices))}")
        self.device = devices.pop()
        super().__init__([p.detach().view(-1) for p in self.parameters])
        wide = any(p.dtype is torch.float64 for p in self.parameters)
        self.dtype = "float64" if wide else "float32"
        self._dtype = torch.float64 if wide else torch.float32

    def gradients(self) -> list[torch.Tensor | None]:
        """Return the gradients as flat tensors, with None for a parameter without a gradient."""
        return [None if p.grad is None else p.grad.detach().reshape(-1) for p in self.parameters]

    def zeros(self, size: int) -> Any:
        return torch.zeros(size, dtype=self._dtype, device=self.device)

    def half(self, values: Any) -> Any:
        return values.to(torch.float16)

    def full(self, values: Any) -> Any:
        return values.to(device=self.device, dtype=self._dtype, copy=True)

    def rows(self, values: Any, count: int) -> Any:
        return values.expand(count, -1).contiguous()

    def message(self, header: Sequence[float], values: Any) -> Any:
        numbers = torch.tensor(header, dtype=torch.float64, device=self.device)
        return torch.cat([numbers.view(torch.uint8), values.view(torch.uint8)])

    def empty_message(self, header: int, size: int, half: bool) -> Any:
        width = 2 if half else self._dtype.itemsize
        return torch.empty(8 * header + size * width, dtype=torch.uint8, device=self.device)

    def parse(self, message: Any, header: int, half: bool) -> tuple[list[float], Any]:
        values = message[8 * header :].view(torch.float16 if half else self._dtype)
        return message[: 8 * header].view(torch.float64).tolist(), self.full(values)


class _Wrapped:
    """Methods that override those of the wrapped optimizer to apply a strategy."""

    _hvd_strategy: Any
    _hvd_plain: type

    @property
    def strategy(self) -> Any:
        """State of the strategy on this rank, with attributes such as ``steps`` and ``bytes_sent``."""
        return self._hvd_strategy

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a local step as the wrapped optimizer does, then communicate if the strategy requires it.

        Args:
            closure (Callable, optional): Passed to the wrapped optimizer.

        Returns:
            The result of the wrapped optimizer's ``step``.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        self.strategy.before_step()
        result = super().step() if closure is None else super().step(closure)  # type: ignore[misc]
        self.strategy.after_step()
        self._stepped()
        return result

    step.hooked = True  # type: ignore[attr-defined]  # the plain class's step, called here, runs the hooks

    def _stepped(self) -> None:
        if not hasattr(self, "_hvd"):  # A wrapped distributed optimizer marks its steps itself.
            marks.optimizer(self)
        if self.strategy.in_sync and isinstance(self.strategy, Rounds):
            names = {p: f"parameter.{i}" for i, p in enumerate(self.strategy.vector.parameters)}
            check_after_step(self, names, self.strategy.process_set, self.strategy.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the original optimizer and, as entry ``strategy``, the state of the strategy.

        To resume exactly, save every rank's state.
        """
        return {**super().state_dict(), "strategy": self.strategy.state_dict()}  # type: ignore[misc]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state from ``state_dict``, or from an optimizer without a strategy. The latter begins a new round."""
        plain = dict(state_dict)
        own = plain.pop("strategy", None)
        super().load_state_dict(plain)  # type: ignore[misc]
        if own is not None:
            self.strategy.load_state_dict(own)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Reject new parameters, which strategies do not support.

        Raises:
            ValueError: Always raised.
        """
        raise ValueError("add_param_group must be called before the optimizer gets a strategy")

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickle the optimizer as an instance of its plain class, as DistributedOptimizer does.
        return _new, (self._hvd_plain,), self.__getstate__()  # type: ignore[attr-defined]


class _Served(_Wrapped):
    """Methods that override those of the wrapped optimizer to use a parameter server."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Send the gradients to the servers, and overwrite the parameters with the replies.

        In "easgd" mode, take a local step instead. Exchange parameters after every ``every`` steps.

        Args:
            closure (Callable, optional): Function that computes the loss and the gradients.

        Returns:
            The closure's loss, or None.

        Raises:
            HorovodInternalError: If a rank was lost, or a server has failed.
        """
        strategy: Serving = self.strategy
        strategy.start()
        if strategy.mode == "easgd":
            loss = super(_Wrapped, self).step() if closure is None else super(_Wrapped, self).step(closure)  # type: ignore[misc]
            strategy.step_apart()
        else:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._hooks("_optimizer_step_pre_hooks")
            strategy.step_with(strategy.vector.gradients())
            self._hooks("_optimizer_step_post_hooks")
        marks.optimizer(self)
        return loss

    step.hooked = True  # type: ignore[attr-defined]

    def _hooks(self, name: str) -> None:
        for hook in list(getattr(self, name, {}).values()):
            hook(self, (), {})

    def serve(self) -> bool:
        """Run the server until all workers are done.

        Returns:
            False on a worker, which returns immediately, and True otherwise.

        Raises:
            TimeoutError: If a worker waited too long for slower workers.
            HorovodInternalError: If a rank was lost.
        """
        if hvd.rank() in self.strategy.roles().workers:
            return False
        adopt(self, self.strategy.serve(), self.strategy)
        return True

    def finish(self) -> None:
        """Finish training on this worker, wait for the other workers, and load the final parameters and state.

        Raises:
            HorovodInternalError: If a rank was lost.
        """
        adopt(self, self.strategy.finish(), self.strategy)

    def state_dict(self) -> dict[str, Any]:
        """Return a state that the wrapped optimizer can load too. A worker requests the state from the servers."""
        strategy = self.strategy
        if strategy.mode != "easgd" and not strategy.in_sync and hvd.rank() in strategy.roles().workers:
            adopt(self, strategy.fetch(), strategy)
        return super(_Wrapped, self).state_dict()  # type: ignore[misc, no-any-return]


def _new(plain: type) -> Any:
    return plain.__new__(plain)


def _wrap(optimizer: Any, make: Callable[[TensorVector], Strategy], methods: type = _Wrapped) -> Any:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, _Wrapped):
        raise ValueError("optimizer must not have a strategy already")
    if "step" in vars(optimizer):
        raise ValueError("optimizer must get its strategy before its learning rate scheduler; swap the two lines")
    optimizer._hvd_strategy = make(TensorVector(optimizer))
    strategies.add(optimizer._hvd_strategy)
    override(optimizer, methods, getattr(optimizer, "_hvd_plain", None))
    return optimizer


def LocalSGD(
    optimizer: torch.optim.Optimizer,
    every: int,
    *,
    synchronous_steps: int = 0,
    wire: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Train each rank independently, average the parameters every ``every`` steps, and return ``optimizer``.

    The optimizer's own state, such as momentum, stays local. For training that is synchronous within each host and
    local across hosts, pass ``hvd.DistributedOptimizer(optimizer, process_set=host)``.

    Args:
        optimizer (torch.optim.Optimizer): Any optimizer. It must not have a learning rate scheduler yet.
        every (int): Number of steps between averages. With 1 and SGD, the result equals that of synchronous SGD.
        synchronous_steps (int): Number of initial steps in which parameters are averaged after every step (post-local
            SGD). Default: 0.
        wire (str, optional): Format in which changes are sent, "fp16", "bf16" or "int8". Default: float32.
        process_set (ProcessSet): Ranks that average. Default: all ranks.

    Returns:
        torch.optim.Optimizer: ``optimizer``, with an attribute ``strategy``.

    Raises:
        ValueError: If an argument is invalid. The message names the argument.
    """
    schedule = Schedule(every, synchronous_steps=synchronous_steps)
    return _wrap(optimizer, lambda vector: Rounds(vector, AVERAGING, schedule, wire, process_set, "LocalSGD"))


def DiLoCo(
    optimizer: torch.optim.Optimizer,
    outer: OuterSGD | None = None,
    every: int = 500,
    fragments: int = 1,
    overlap: int = 0,
    wire: str | None = None,
    *,
    mixing: float = 0.0,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Train each rank independently, update shared parameters with an outer optimizer, and return ``optimizer``.

    After a round, the ranks average the changes of their parameters. The outer optimizer applies the average to the
    shared parameters, and all ranks continue from the result (Douillard et al. 2023).

    Args:
        optimizer (torch.optim.Optimizer): Any optimizer. It must not have a learning rate scheduler yet.
        outer (horovod.strategies.OuterSGD, optional): Outer optimizer. Default: ``OuterSGD(0.7, 0.9, nesterov=True)``.
        every (int): Number of steps per round. Default: 500.
        fragments (int): Number of parts of the parameters. Parts are exchanged at different steps of a round, which
            reduces the amount of data per step. Must divide ``every``. Default: 1.
        overlap (int): Number of steps that a rank trains while a part is exchanged. Must be less than
            ``every / fragments``. Default: 0.
        wire (str, optional): Format in which changes are sent, "fp16", "bf16" or "int8". Default: float32.
        mixing (float): Weight of a rank's own parameters when they are mixed with the shared parameters. With
            ``overlap``, a value of 0.5 keeps half of the change made during the exchange. Default: 0.0.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        torch.optim.Optimizer: ``optimizer``, with an attribute ``strategy``.

    Raises:
        ValueError: If an argument is invalid. The message names the argument.
    """
    outer, schedule = outer or OuterSGD(), Schedule(every, fragments, overlap)
    return _wrap(optimizer, lambda vector: Rounds(vector, outer, schedule, wire, process_set, "DiLoCo", mixing))


def Gossip(
    optimizer: torch.optim.Optimizer,
    graph: str | Graph = "exponential",
    push_sum: bool = True,
    *,
    every: int = 1,
    average_every: int = 0,
    wire: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Average each rank's parameters with another rank's after each step, and return ``optimizer``.

    A rank sends its parameters to only one other rank, for any number of ranks. The ranks' parameters stay close but
    are not equal. Average them at the end with ``hvd.allreduce``, or use ``average_every``.

    Args:
        optimizer (torch.optim.Optimizer): Any optimizer. It must not have a learning rate scheduler yet.
        graph (str or Callable): "exponential" (the rank at distance 1, 2, 4, ... in turn), "ring" (the next and the
            previous rank in turn), "pairs" (each of the other ranks in turn), or a function ``graph(size, round)``
            that returns a list of target ranks for each rank. The function must return the same lists on all ranks.
        push_sum (bool): True to send a weight too (stochastic gradient push). Only graphs in which ranks receive
            unequal shares require a weight. Default: True.
        every (int): Number of steps between two rounds. Default: 1.
        average_every (int): Number of rounds between exact averages over all ranks, or 0 for no exact averages.
            Default: 0.
        wire (str, optional): Format in which parameters are sent, "fp16" or None. Default: the parameters' own format.
        process_set (ProcessSet): Ranks that take part. Default: all ranks.

    Returns:
        torch.optim.Optimizer: ``optimizer``, with an attribute ``strategy``.

    Raises:
        ValueError: If an argument is invalid. The message names the argument.
    """
    return _wrap(
        optimizer, lambda vector: GossipRounds(vector, graph, push_sum, every, average_every, wire, process_set)
    )


def ParameterServer(
    optimizer: torch.optim.Optimizer,
    servers: int = 1,
    mode: str = "sync",
    staleness: int | None = None,
    *,
    every: int = 1,
    rate: float | None = None,
    damping: bool = False,
    wire: str | None = None,
    timeout: float = 600.0,
) -> Any:
    """Use the last ranks as servers that store the parameters, train on the other ranks, and return ``optimizer``.

    Each server stores a slice of the parameters and runs ``optimizer`` on it. The program must call
    ``hvd.init(process_sets="dynamic")``. Servers and workers run the same program, which differs in one line::

        optimizer = hvd.ParameterServer(optimizer, servers=1, mode="async", staleness=4)
        if not optimizer.serve():   # servers return when the workers are done
            train(model, optimizer)  # unchanged; ranks 0 to hvd.size() - 1 - servers
            optimizer.finish()

    Args:
        optimizer (torch.optim.Optimizer): Optimizer that updates each element independently, such as SGD or Adam. It
            must not have a learning rate scheduler yet.
        servers (int): Number of servers. Default: 1.
        mode (str): With "sync", servers apply the average gradient of all workers. With "async", they apply each
            gradient when it arrives. With "easgd", workers take local steps. After every ``every`` steps, a worker's
            parameters and the servers' parameters (the center) move towards each other. Default: "sync".
        staleness (int, optional): Maximum number of steps by which a worker can be ahead of the slowest worker in modes
            "async" and "easgd". Default: no limit.
        every (int): Number of steps between exchanges in "easgd" mode. Default: 1.
        rate (float, optional): Moving rate in "easgd" mode. Default: 0.9 / number of workers.
        damping (bool): True to divide each asynchronous gradient by 1 + its staleness. Default: False.
        wire (str, optional): Format of the values that workers send, "fp16" or None. Default: float32.
        timeout (float): Maximum seconds that a worker waits for slower workers. Default: 600.

    Returns:
        torch.optim.Optimizer: ``optimizer``, with methods ``serve`` and ``finish`` and an attribute ``strategy``, whose
        ``histogram`` counts updates by staleness.

    Raises:
        ValueError: If an argument is invalid. The message names the argument.
    """

    def make(vector: TensorVector) -> Serving:
        def store(start: int, stop: int) -> SlicedOptimizer:
            return SlicedOptimizer(optimizer, vector, start, stop)

        options = SlicedOptimizer.options_of(optimizer)
        return Serving(vector, store, servers, mode, staleness, every, rate, damping, wire, timeout, options)

    return _wrap(optimizer, make, _Served)


__all__: Iterable[str] = ["DiLoCo", "Gossip", "LocalSGD", "ParameterServer"]


# The optimizer of a parameter server, for the slice of the parameters that it stores.


class SlicedOptimizer(Store):
    """A store that updates its slice with a copy of a torch optimizer, which contains only the slice's state.

    Args:
        optimizer: Optimizer of the whole model, whose state for the slice is copied.
        vector: The parameters of the optimizer.
        start, stop: Elements of the vector that form the slice.
    """

    def __init__(self, optimizer: Any, vector: Vector, start: int, stop: int) -> None:
        super().__init__(vector.read(start, stop), self._step)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._segments = segments(vector.sizes, start, stop)
        self._tensors = {s.index: self.values[s.offset : s.offset + s.stop - s.start] for s in self._segments}
        groups, first = [], 0
        for group in optimizer.param_groups:
            indices = range(first, first + len(group["params"]))
            groups.append({**group, "params": [self._tensors[i] for i in indices if i in self._tensors]})
            first += len(group["params"])
        state: dict[Any, Any] = defaultdict(dict)
        for index, low, high, _ in self._segments:
            entries = optimizer.state.get(parameters[index], {})
            state[self._tensors[index]] = {
                key: _part(value, vector.sizes[index], low, high) for key, value in entries.items()
            }
        plain = optimizer._hvd_plain
        self._optimizer = plain.__new__(plain)
        # With this attribute, no warning says that the optimizer is not distributed.
        self._optimizer._hvd_strategy = None
        self._optimizer.__setstate__({"defaults": optimizer.defaults, "state": state, "param_groups": groups})

    @staticmethod
    def options_of(optimizer: Any) -> Callable[[], list[float]]:
        """Return a function that returns the current numeric options of all groups, such as learning rates."""
        return lambda: [float(group[key]) for group in optimizer.param_groups for key in _numeric(optimizer, group)]

    def _step(self, _: Any, gradient: Any, options: Sequence[float]) -> None:
        numbers = iter(options)
        for group in self._optimizer.param_groups:
            for key in _numeric(self._optimizer, group):
                group[key] = next(numbers)
        for index, low, high, offset in self._segments:
            self._tensors[index].grad = gradient[offset : offset + high - low]
        self._optimizer.step()

    def state(self) -> list[tuple[int, int, int, dict[str, Any]]]:
        """Return the optimizer's state as a list of (index of the parameter, start, stop, entries)."""
        state = self._optimizer.state
        return [(s.index, s.start, s.stop, dict(state.get(self._tensors[s.index], {}))) for s in self._segments]


def adopt(optimizer: Any, snapshots: Sequence[dict[str, Any]], strategy: Serving) -> None:
    """Copy the servers' optimizer state to a rank's wrapped optimizer."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if strategy.mode == "easgd":
        return  # In "easgd" mode, each worker keeps its own optimizer state.
    for snapshot in snapshots:
        for index, low, high, entries in snapshot["state"]:
            p = parameters[index]
            mine = optimizer.state[p] if entries else {}
            for key, value in entries.items():
                if not isinstance(value, torch.Tensor) or value.dim() == 0 or value.numel() != high - low:
                    mine[key] = value.clone() if isinstance(value, torch.Tensor) else value
                    continue
                if not isinstance(mine.get(key), torch.Tensor) or mine[key].shape != p.shape:
                    mine[key] = torch.zeros_like(p, dtype=value.dtype, memory_format=torch.contiguous_format)
                mine[key].view(-1)[low:high] = value.to(p.device)


def _part(value: Any, size: int, low: int, high: int) -> Any:
    """Slice a state entry that has one number per element. Copy other entries."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dim() and value.numel() == size:
        return value.detach().reshape(-1)[low:high].to(torch.promote_types(value.dtype, torch.float32), copy=True)
    return value.clone()


def _numeric(optimizer: Any, group: dict[str, Any]) -> list[str]:
    """Return the names of a parameter group's numeric options, excluding entries added by schedulers."""
    numbers = (key for key in optimizer.defaults if type(group.get(key)) in (float, int))
    return sorted(numbers)
