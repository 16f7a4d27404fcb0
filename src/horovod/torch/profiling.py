"""Recorder that profiles a training step for the planner (docs/planner.md)."""

import atexit
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from horovod.common import dtypes
from horovod.common.frontends import TORCH as frontend
from horovod.torch.functions import allgather_object

if TYPE_CHECKING:
    from horovod.planner.profile import RecordedStep

_WARM_UP = 5
"""Number of steps, from the first on, that are not recorded, because they allocate memory and fill caches."""

_in_backward: Any = getattr(torch._C, "_current_graph_task_id", lambda: -1)

_active: "_Recorder | None" = None


def profile(
    path: "str | os.PathLike[str]",
    steps: int = 20,
    batch: int | None = None,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
) -> None:
    """Record a profile of the next training steps for ``python -m horovod.planner``.

    Call this before the training loop, which needs no changes. The profile contains the compute times of a step, and
    the order in which backward produces the gradients. It does not include the time that a rank waits for
    communication, so one worker is sufficient. With several workers it also contains how much ranks differ. In a job,
    all ranks must call this with the same ``steps``.

    A step ends with ``step()`` of the first optimizer that is used. Forward begins with the first call of a module
    after that, and backward when the last module has returned. On CUDA devices, times are measured on the device.

    Args:
        path: File that rank 0 writes after 5 + ``steps`` steps.
        steps: Number of steps to record, at least 1.
        batch: Samples per worker and step. Default: the first dimension of the first tensor that a module is called
            with.
        named_parameters: Names of the parameters. Default: those given to ``DistributedOptimizer``, or positions.

    Raises:
        ValueError: If ``steps`` is not positive, or if a profile is being recorded.
    """
    global _active
    if steps < 1:
        raise ValueError(f"`steps` must be at least 1, got {steps}")
    if _active is not None:
        raise ValueError(f"a profile is already being recorded, to {_active.path}; only one can be at a time")
    _active = _Recorder(os.fspath(path), steps, batch, dict(named_parameters or ()))


def recording(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate ``hvd.init`` to start the profile requested by HOROVOD_PROFILE, once per file."""
    before = ""

    @functools.wraps(init)
    def recorded(*args: Any, **kwargs: Any) -> None:
        nonlocal before
        init(*args, **kwargs)
        path = os.environ.get("HOROVOD_PROFILE", "")
        if path not in ("", before) and _active is None:
            profile(path)
            atexit.register(_report_short_run)
        before = path

    return recorded


def _report_short_run() -> None:
    if _active is not None and os.environ.get("HOROVOD_RANK", "0") == "0":
        # Record one extra step, because the beginning of the first step is unknown.
        needed = _active.required + 1
        print(f"[horovod] no profile in {_active.path}: it needs {needed} training steps", file=sys.stderr, flush=True)


class _HostClock:
    """Host clock in seconds, used when training on the CPU."""

    def mark(self) -> Any:
        return time.perf_counter()

    def between(self, start: Any, end: Any) -> float:
        return float(end - start)

    def wait(self) -> None:
        """Wait until the device has reached all marked points."""


class _CudaClock:
    """Clock of the current CUDA device, which records events on the current stream."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        return max(float(start.elapsed_time(end)), 0.0) / 1e3

    def wait(self) -> None:
        torch.cuda.synchronize()


class _Marks:
    """Timestamps at which a training step reached each of its phases."""

    def __init__(self, begin: Any) -> None:
        self.begin = begin
        self.forward: Any = None
        self.backward: Any = None
        self.ready: dict[int, Any] = {}
        self.last: Any = None
        self.optimizer: Any = None
        self.end: Any = None

    def complete(self) -> bool:
        return None not in (self.begin, self.forward, self.backward, self.last, self.optimizer, self.end)


class _Recorder:
    """Recorder of a training profile, using hooks on modules, gradients and optimizers."""

    def __init__(self, path: str, steps: int, batch: int | None, names: dict[str, torch.Tensor]) -> None:
        self.path, self._batch = path, batch
        self.required = _WARM_UP + steps
        self._names = {parameter: name for name, parameter in names.items()}
        self._clock: Any = _HostClock()
        self._optimizer: Any = None
        self._parameters: list[torch.Tensor] = []
        self._model = ""
        # Nesting depth of module calls.
        self._calls = 0
        # Nesting depth of step() calls. A distributed optimizer's step() calls that of its base class.
        self._stepping = 0
        self._now = _Marks(None)
        self._finished: list[_Marks] = []
        # Import lazily, because this module must also be importable with PyTorch versions that lack these functions.
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        self._handles: list[Any] = [
            register_module_forward_pre_hook(self._before_forward),
            register_module_forward_hook(self._after_forward),
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]

    def _before_forward(self, module: torch.nn.Module, inputs: Any) -> None:
        # Ignore forward passes that activation checkpointing recomputes during backward.
        if _in_backward() != -1:
            return
        if self._calls == 0 and self._now.forward is None:
            self._now.forward = self._clock.mark()
            self._model = self._model or type(module).__name__
            if self._batch is None:
                sized = (x.shape[0] for x in inputs if isinstance(x, torch.Tensor) and x.dim())
                self._batch = next(sized, None)
        self._calls += 1

    def _after_forward(self, module: torch.nn.Module, inputs: Any, output: Any) -> None:
        if _in_backward() != -1:
            return
        self._calls = max(self._calls - 1, 0)
        if self._calls == 0:
            self._now.backward = self._clock.mark()

    def _on_gradient(self, number: int) -> None:
        self._now.ready[number] = self._now.last = self._clock.mark()

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        if self._optimizer is None:
            self._watch(optimizer)
        if optimizer is self._optimizer:
            self._stepping += 1
            self._now.optimizer = self._clock.mark()

    def _watch(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._names = self._names or getattr(optimizer, "_parameter_names", {})
        self._parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        if any(p.is_cuda for p in self._parameters):
            self._clock = _CudaClock()
        for number, parameter in enumerate(self._parameters):
            hook = parameter.register_post_accumulate_grad_hook(lambda _, number=number: self._on_gradient(number))
            self._handles.append(hook)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        if optimizer is not self._optimizer:
            return
        marks = self._now
        marks.end = marks.end or self._clock.mark()
        self._stepping -= 1
        if self._stepping:
            return
        self._calls = 0
        self._now = _Marks(marks.end)
        if marks.complete():
            self._finished.append(marks)
        if len(self._finished) == self.required:
            self._finish()

    def _finish(self) -> None:
        # Import this module lazily, because only programs that record a profile need it.
        from horovod.planner.profile import RecordedRank, profile_of_recording, save

        global _active
        _active = None
        for handle in self._handles:
            handle.remove()
        self._clock.wait()
        rank = RecordedRank(
            name=self._model,
            device="gpu" if isinstance(self._clock, _CudaClock) else "cpu",
            batch=self._batch or 1,
            gradients=[
                (self._names.get(p, f"parameter.{i}"), p.numel(), _dtype_of(p)) for i, p in enumerate(self._parameters)
            ],
            steps=[self._recorded(marks) for marks in self._finished[_WARM_UP:]],
        )
        job = frontend.job
        ranks = allgather_object(rank, name="horovod.profile") if job is not None and job.size > 1 else [rank]
        if job is None or job.rank == 0:
            save(profile_of_recording(ranks), self.path)
            print(f"[horovod] profile of {len(rank.steps)} steps on {len(ranks)} ranks: {self.path}", flush=True)

    def _recorded(self, marks: _Marks) -> "RecordedStep":
        from horovod.planner.profile import RecordedStep

        between = self._clock.between
        return RecordedStep(
            data=between(marks.begin, marks.forward),
            forward=between(marks.forward, marks.backward),
            backward=between(marks.backward, marks.last),
            optimizer=between(marks.optimizer, marks.end),
            ready={number: max(between(marks.backward, mark), 0.0) for number, mark in marks.ready.items()},
        )


def _dtype_of(parameter: torch.Tensor) -> str:
    grad = parameter.grad
    return dtypes.name_of(parameter.dtype if grad is None else grad.dtype)
