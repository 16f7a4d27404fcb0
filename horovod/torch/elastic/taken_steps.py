"""How many steps the optimizers of a state have taken, and whether a failure came before the next one."""

import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any

import torch

from horovod.common.exceptions import HorovodInternalError
from horovod.torch.contribution import fill, kind_of
from horovod.torch.elastic.step_by_step import StepByStep
from horovod.torch.gradients import GradientReducer

_REDUCTION = frozenset(("horovod.torch.gradients", "horovod.torch.backward"))


class Round:
    """Of several optimizers: what they do between two steps that are counted, each one step, in any order. Pure."""

    def __init__(self) -> None:
        self._stepped: set[int] = set()
        self._in_turns = True

    @property
    def complete(self) -> bool:
        """All have stepped equally often, in turns."""
        return self._in_turns and not self._stepped

    def stepped(self, which: int, optimizers: int) -> bool:
        """One of so many has. True: it was the last one of the round."""
        self._in_turns = self._in_turns and which not in self._stepped
        self._stepped.add(which)
        if len(self._stepped) < optimizers:
            return False
        self._stepped.clear()
        return True


class Steps:
    """``taken``: steps since the job began, of all optimizers that are watched; ``rounds``: of the job, to each
    of which all optimizers belong. Those that are done again after a commit was restored count twice."""

    def __init__(
        self,
        stepped: Callable[[], None] = lambda: None,
        begins: Callable[[], None] = lambda: None,
        counted: Callable[[], Hashable] = lambda: None,
    ) -> None:
        """``stepped`` is called after each of them, ``begins`` before. ``counted``: what the program counts its steps
        by, as it is now."""
        self.taken = self.rounds = 0
        self._stepped = stepped
        self._begins = begins
        self._counted = counted
        self._by_step = StepByStep()
        self._round = Round()
        self._at_first: tuple[Hashable] | None = None  # what was counted at the first forward pass of this step
        self._hooks: dict[int, tuple[Any, Any, Any]] = {}
        self._stepping: list[torch.Tensor] = []  # parameters
        self._committed_gradients: list[int] = []  # kinds, by parameter
        self._resumed_gradients: list[int] | None = None  # those that training resumes with; None: those there are now

    def watch(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Counts the steps of these from now on, and of no others."""
        wanted = {id(one): one for one in optimizers}
        for key in [key for key in self._hooks if key not in wanted]:
            for hook in self._hooks.pop(key)[1:]:
                hook.remove()
        itself = weakref.ref(self)

        def stepped(optimizer: Any, *_: Any) -> None:
            if (steps := itself()) is not None:
                steps._has_stepped(id(optimizer))

        def begins(*_: Any) -> None:
            if (steps := itself()) is not None:
                steps._begins()

        for key, one in wanted.items():
            if key not in self._hooks:
                self._hooks[key] = one, one.register_step_pre_hook(begins), one.register_step_post_hook(stepped)
        self.go_on()

    def _has_stepped(self, which: int) -> None:
        self.taken += 1
        self._at_first = self._resumed_gradients = None
        if self._round.stepped(which, len(self._hooks)):
            self.rounds += 1
            self._by_step.stepped(*self._now())
        self._stepped()

    def forward(self) -> None:
        """The first forward pass of a step begins."""
        self._at_first = (self._counted(),)
        self._resumed_gradients = self._gradients()

    def parameters(self) -> frozenset[int]:
        """Addresses of what they step."""
        return frozenset(p.data_ptr() for p in self._all_parameters())

    def go_on(self) -> None:
        """All ranks have the same state now, and the program's function is called with it."""
        self._stepping = self._all_parameters()
        self._by_step.go_on(*self._now())
        self._round = Round()
        self._at_first = self._resumed_gradients = None

    def restored(self) -> None:
        """Parameters and counters are those of the last commit again."""
        self.go_on()
        self._resumed_gradients = self._committed_gradients

    def committed(self) -> None:
        """The program says that training can go on from what the state is now."""
        self._committed_gradients = self._gradients()
        if self._by_step.begins:
            self.go_on()

    def before_step(self, failure: HorovodInternalError) -> bool:
        """Did it hit the reduction of gradients, in a program that counts each step when it is done? Then it has
        finished with the last step, and the next one has changed nothing (``step_by_step``).

        Where several backward passes make a step, nothing may be counted between the first and this one: the gradients
        of those before are gone. Where there are several optimizers, all have to have taken the last step, each once.
        On a GPU the step before may have used gradients that never came: that is launched before they are there.
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
        """Are there gradients of backward passes whose step is to come?"""
        return any(one.in_a_step for one in map(_reducer, self._optimizers()) if one is not None)

    def can_hand_over(self) -> bool:
        """May training go on from here though a rank has just been lost, where the program is ready for others to
        join?"""
        return not self.in_a_step() and self._on_cpu()

    def _on_cpu(self) -> bool:
        return all(p.device.type == "cpu" for p in self._stepping)

    def gradients(self) -> list[int]:
        """Return, for each parameter, the kind of gradient that it has where training resumes (``kind_of``).

        An optimizer skips a parameter whose gradient is None, but steps one whose gradient is zero: its momentum and
        its weight decay change it. So the step that is done again must find the gradients that it found at first.
        """
        return self._gradients() if self._resumed_gradients is None else self._resumed_gradients

    def reset_gradients(self, kinds: Sequence[int]) -> None:
        """Drop the gradients of the failed step: set each to zero, or to None where ``kinds`` says so.

        ``kinds``: what ``gradients`` returned on the rank whose state all ranks take.
        """
        for one in self._optimizers():
            reducer = _reducer(one)
            if reducer is not None:
                reducer.reset()
            one.zero_grad()
        # Parameters that were added after `kinds` was recorded have no gradient yet.
        for parameter, kind in zip(self._all_parameters(), itertools.chain(kinds, itertools.repeat(0)), strict=False):
            if kind == 0:
                parameter.grad = None
            else:
                fill(parameter, kind)
        # Zeros need no reduction. Otherwise ranks that had their tensors before would leave out what new ones reduce.
        for one in self._optimizers():
            reducer = _reducer(one)
            if reducer is not None:
                reducer.coverage.leave_alone()

    def _gradients(self) -> list[int]:
        return [kind_of(p.grad) for p in self._all_parameters()]

    def _all_parameters(self) -> list[torch.Tensor]:
        return [p for one in self._optimizers() for group in one.param_groups for p in group["params"]]

    def _now(self) -> tuple[Hashable, tuple[int, int]]:
        """What is counted; how often gradients have been reduced, and parameters changed."""
        reduced = sum(one.reductions for one in map(_reducer, self._optimizers()) if one is not None)
        return self._counted(), (reduced, sum([p._version for p in self._stepping]))

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
