"""Counter of optimizer steps, and checks for whether a failed step can be repeated."""

import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any

import torch

from horovod.common.exceptions import HorovodInternalError
from horovod.torch.reducer.gradients import GradientReducer
from horovod.torch.reducer.rounds import fill, kind_of

# Detection of programs that update a counter immediately after each optimizer step. An example is a loop `for
# state.batch in range(state.batch, n)` with one step per iteration. After a failure, the counters of such a program
# show exactly how many steps are done, so the program can resume from its current state. All other programs must return
# to the last commit. Examples are programs that count several steps as one, update their counters only for a commit,
# count a step before taking it, or change parameters for a second backward pass and change them back.


class StepByStep:
    """Observer of training function calls and optimizer steps.

    The argument ``counted`` of its methods contains the program's counters, such as ``state.batch``. The argument
    ``touched`` is any value that changes whenever gradients are reduced or parameters change.
    """

    def __init__(self) -> None:
        # True if the program has changed its counters between every two successive steps so far.
        self._each = True
        # True if the program's counters have changed at least once between two steps.
        self._seen = False
        # False if the program has changed a counter before the first step of the current training function call.
        self._after = True
        self.begins = True
        """True until the first step after the function began."""
        self._last: tuple[Hashable, Hashable] = (None, None)

    def go_on(self, counted: Hashable, touched: Hashable) -> None:
        """Record that the training function is about to start, or that a restart would resume from this state."""
        self.begins = self._after = True
        self._last = counted, touched

    def stepped(self, counted: Hashable, touched: Hashable) -> None:
        """Record that an optimizer has changed the parameters."""
        same = counted == self._last[0]
        if self.begins:
            self._after = same
            self.begins = False
        elif same:
            self._each = False
        else:
            self._seen = True
        self._last = counted, touched

    def is_between(self, counted: Hashable, touched: Hashable) -> bool:
        """Return True if the counters include the last step, and no gradient or parameter has changed since then.

        This is called when the program is about to reduce gradients.
        """
        if touched != self._last[1]:
            return False
        if self.begins:
            return counted == self._last[0]
        return self._each and self._seen and self._after and counted != self._last[0]


_REDUCTION = frozenset(("horovod.torch.reducer.gradients", "horovod.torch.reducer.backward"))


class Round:
    """Record of one round of steps, in which each of the program's optimizers takes one step, in any order.

    A program with several optimizers counts one round as one step.
    """

    def __init__(self) -> None:
        self._stepped: set[int] = set()
        self._in_turns = True

    @property
    def complete(self) -> bool:
        """True if no round is incomplete, and no optimizer has ever taken two steps in one round."""
        return self._in_turns and not self._stepped

    def stepped(self, which: int, optimizers: int) -> bool:
        """Record a step of one optimizer, and return True if this step completes the round."""
        self._in_turns = self._in_turns and which not in self._stepped
        self._stepped.add(which)
        if len(self._stepped) < optimizers:
            return False
        self._stepped.clear()
        return True


class Steps:
    """Counter of the steps taken by the watched optimizers.

    ``completed`` is the number of steps of all optimizers since the job began. ``rounds`` is the number of rounds, each
    with one step of every optimizer. Steps that are repeated after a restore count twice.
    """

    def __init__(
        self,
        stepped: Callable[[], None] = lambda: None,
        begins: Callable[[], None] = lambda: None,
        counted: Callable[[], Hashable] = lambda: None,
    ) -> None:
        """Create a counter that calls the given functions around each step.

        Args:
            stepped: Called after each step.
            begins: Called before each step.
            counted: Function that returns the program's counters, such as ``state.batch``.
        """
        self.completed = self.rounds = 0
        self._stepped = stepped
        self._begins = begins
        self._counted = counted
        self._by_step = StepByStep()
        self._round = Round()
        # Values of the program's counters at the first forward pass of the current step.
        self._at_first: tuple[Hashable] | None = None
        self._hooks: dict[int, tuple[Any, Any, Any]] = {}
        # Parameters of all watched optimizers.
        self._stepping: list[torch.Tensor] = []
        # Kind of each parameter's gradient at the last commit: None, dense or sparse, as a code of `kind_of`.
        self._committed_gradients: list[int] = []
        # Kind that each parameter's gradient must have when training resumes. If the list is None, the kinds of the
        # current gradients are used.
        self._resumed_gradients: list[int] | None = None

    def watch(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Replace the optimizers whose steps are counted."""
        optimizers_ = {id(one): one for one in optimizers}
        for key in [key for key in self._hooks if key not in optimizers_]:
            for hook in self._hooks.pop(key)[1:]:
                hook.remove()
        itself = weakref.ref(self)

        def stepped(optimizer: Any, *_: Any) -> None:
            if (steps := itself()) is not None:
                steps._has_stepped(id(optimizer))

        def begins(*_: Any) -> None:
            if (steps := itself()) is not None:
                steps._begins()

        for key, one in optimizers_.items():
            if key not in self._hooks:
                self._hooks[key] = one, one.register_step_pre_hook(begins), one.register_step_post_hook(stepped)
        self.go_on()

    def _has_stepped(self, which: int) -> None:
        self.completed += 1
        self._at_first = self._resumed_gradients = None
        if self._round.stepped(which, len(self._hooks)):
            self.rounds += 1
            self._by_step.stepped(*self._now())
        self._stepped()

    def forward(self) -> None:
        """Record that the first forward pass of a step is beginning."""
        self._at_first = (self._counted(),)
        self._resumed_gradients = self._gradients()

    def parameters(self) -> frozenset[int]:
        """Return the addresses of the optimizers' parameters."""
        return frozenset(p.data_ptr() for p in self._all_parameters())

    def go_on(self) -> None:
        """Discard earlier observations of the program.

        Call this when all ranks have the same state, just before the training function is called.
        """
        self._stepping = self._all_parameters()
        self._by_step.go_on(*self._now())
        self._round = Round()
        self._at_first = self._resumed_gradients = None

    def restored(self) -> None:
        """Record that parameters and counters were restored from the last commit."""
        self.go_on()
        self._resumed_gradients = self._committed_gradients

    def committed(self) -> None:
        """Record a commit, by which the program declares that training can resume from its current state."""
        self._committed_gradients = self._gradients()
        if self._by_step.begins:
            self.go_on()

    def before_step(self, failure: HorovodInternalError) -> bool:
        """Return True if training can resume at the beginning of the failed step.

        The failure must have occurred in the reduction of gradients, and the program must update its counters
        immediately after each step. The current state then includes all completed steps, and nothing of the failed step
        (see the comment at the beginning of this module).

        If a step consists of several backward passes, the program must not change a counter between the first pass and
        this one, because the earlier gradients are lost. With several optimizers, each must have taken the last step
        exactly once. On a GPU the result is always False, because the last step may have used gradients whose reduction
        failed later.
        """
        reducers = [one for one in map(_reducer, self._optimizers()) if one is not None]
        return (
            len(self._hooks) == len(reducers) > 0
            and self._round.complete
            and (all(one.options.passes == 1 for one in reducers) or self._at_first == (self._counted(),))
            and _within(failure.__traceback__, _REDUCTION)
            and self._on_cpu()
            and self._by_step.is_between(*self._now())
        )

    def in_a_step(self) -> bool:
        """Return True if backward passes have produced gradients that no step has consumed yet."""
        return any(one.in_a_step for one in map(_reducer, self._optimizers()) if one is not None)

    def can_hand_over(self) -> bool:
        """Return True if training could continue from the current state after the loss of a rank.

        This is called when the program is at a point where new ranks can join.
        """
        return not self.in_a_step() and self._on_cpu()

    def _on_cpu(self) -> bool:
        return all(p.device.type == "cpu" for p in self._stepping)

    def gradients(self) -> list[int]:
        """Return the kind (None, dense or sparse) that each parameter's gradient must have when training resumes.

        An optimizer skips a parameter whose gradient is None, but updates one whose gradient is zero, because of
        momentum and weight decay. A repeated step must therefore start from the same gradients as the first attempt.
        ``kind_of`` defines the codes.
        """
        return self._gradients() if self._resumed_gradients is None else self._resumed_gradients

    def reset_gradients(self, kinds: Sequence[int]) -> None:
        """Discard the gradients of the failed step.

        Each gradient becomes None or zeros, according to ``kinds``. ``kinds`` is the result of ``gradients`` on the
        rank whose state all ranks adopt.
        """
        for one in self._optimizers():
            reducer = _reducer(one)
            if reducer is not None:
                reducer.reset()
            one.zero_grad()
        # Parameters added after `kinds` was recorded are not in `kinds`. They have no gradient yet.
        for parameter, kind in zip(self._all_parameters(), itertools.chain(kinds, itertools.repeat(0)), strict=False):
            if kind == 0:
                parameter.grad = None
            else:
                fill(parameter, kind)
        # Mark the zero gradients as reduced. Otherwise, new ranks would start a reduction of them that the other ranks
        # do not join.
        for one in self._optimizers():
            reducer = _reducer(one)
            if reducer is not None:
                reducer.coverage.mark_reduced()

    def _gradients(self) -> list[int]:
        return [kind_of(p.grad) for p in self._all_parameters()]

    def _all_parameters(self) -> list[torch.Tensor]:
        return [p for one in self._optimizers() for group in one.param_groups for p in group["params"]]

    def _now(self) -> tuple[Hashable, tuple[int, int]]:
        """Return the program's step counters, the number of reductions, and the sum of parameter version counters."""
        reduced = sum(one.reductions for one in map(_reducer, self._optimizers()) if one is not None)
        return self._counted(), (reduced, sum([p._version for p in self._stepping]))  # noqa: C419

    def _optimizers(self) -> list[Any]:
        return [hooked[0] for hooked in self._hooks.values()]


def _reducer(optimizer: Any) -> GradientReducer | None:
    control = getattr(optimizer, "_hvd", None)
    reducer = control.reducer if control is not None else None
    return reducer if isinstance(reducer, GradientReducer) else None


def _within(trace: TracebackType | None, modules: frozenset[str]) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") in modules:
            return True
        trace = trace.tb_next
    return False
