"""Reduction of a model's gradients during the backward pass. The reduction is complete when ``backward()`` returns.

Each parameter has a hook that autograd calls when the gradient is complete. The hook submits the gradient to the engine
and returns. Everything else happens in a *round*, in which all ranks take part. It runs at the end of the backward
pass, or of the last of ``backward_passes_per_step`` passes. backward.py has the hooks and detects the end of a pass.
The states of a ``GradientReducer``:

- *idle*: nothing is in flight. Initial state; entered by ``finish`` and ``reset``.
- *in a pass*: entered by ``on_gradient`` with the first gradient of a pass. In the last pass of a round, a gradient is
  submitted when it, or all of its bucket or group, has arrived. In earlier passes autograd only accumulates gradients.
- *between passes*: entered by ``pass_ended`` after a pass that is not the last one of its round.
- *requested*: entered by ``begin``. All gradients of this rank and its readiness message are in flight.
- *submitted*: entered by ``submit_missing`` when the messages of all ranks have arrived. Zeros for gradients that only
  other ranks have are in flight, too. ``finish`` waits for everything and leads to *idle*.
- *failed*: entered by ``pass_failed``. The next time that this rank waits for an operation, ``recover`` reports the
  failure to the other ranks in a round, and leads to *idle*.

``begin``, ``submit_missing`` and ``finish`` are the steps of a round. ``step()`` also runs a round (``synchronize``) if
this rank has run no backward pass since the last step, or if no round has seen some gradients (coverage.py). An
exception in a round leads to ``reset``, which waits for everything in flight.

Ranks can have gradients for different parameters, for example if some ranks' data passed through a branch of the model.
So each rank contributes flags, one byte per parameter, to a small reduction with Max: 0 for no gradient, 1 for a dense
one, 1 + k for a sparse one with k sparse dimensions. A rank without a gradient waits for the combined flags and sends
zeros if another rank has the gradient. If no rank has it, it stays None, as in a single process.

A rank can also call ``step`` without a backward pass while other ranks have run one. It then takes part in their
rounds. It expects the largest number of rounds that earlier steps had. If the other ranks run fewer rounds, they know
from the message that a rank is waiting, and run another one from their own ``step``. Other fields of the message
(agreement.py) make a round fail on all ranks if ranks have run different numbers of backward passes, or if a backward
pass raised an exception.

Gradients are first reduced one by one, and later in shared buckets (rounds.py, buckets.py). A bucket is submitted when
all its gradients have arrived. If some are missing on all ranks, the rest are reduced one by one.
"""

from collections.abc import Iterable
from threading import get_ident
from typing import Any

import torch

from horovod._core import HookState
from horovod.common.exceptions import RanksDisagreeError
from horovod.common.frontends import TORCH as frontend
from horovod.common.ops import Average, Sum
from horovod.torch.monitoring import Progress, epochs
from horovod.torch.ops import handles
from horovod.torch.reducer import agreement, backward
from horovod.torch.reducer.backward import Hooks
from horovod.torch.reducer.buckets import Bucket, Slot
from horovod.torch.reducer.coverage import Coverage, naming
from horovod.torch.reducer.parameter_names import Members
from horovod.torch.reducer.rounds import Bucketing, Contribution, add_accumulated, set_accumulated_aside
from horovod.torch.reducer.submissions import Group, Options, Submissions


class GradientReducer(backward.PassState):
    """Gradient reducer of one optimizer. Implements ``backward.Reducer``."""

    def __init__(self, members: Members, names: dict[torch.Tensor, str], options: Options) -> None:
        """Register hooks on the parameters of one optimizer.

        ``names`` must be unique among the operations of the process set and the same on all ranks.
        """
        self.options = options
        self._members = members
        self._slots: list[Slot] = []
        # State that the gradient hooks read, such as the id of the thread in which they take the fast path.
        self._state = HookState()
        self._hooks = Hooks(self, before_accumulation=options.op != Average, state=self._state)
        self._groups: list[Group] = []
        # Operations in flight for the current reduction round.
        self.in_flight = Submissions(options)
        self._bucketing = Bucketing(options.max_bucketed, options.process_set)
        self._contribution = Contribution(options, self._slots, self._groups, self._bucketing, self.in_flight)
        self.coverage = Coverage(self._slots)
        self._job = frontend.job
        self.reductions = 0
        """Number of rounds completed by this reducer."""
        self.progress = Progress()
        # Number of reduction rounds completed since the last step or zero_grad().
        self._rounds = 0
        # True if any rank had called hvd.join() before the last reduction round ended.
        self._some_joined = False
        self._turn = backward.Turn()
        # Number of the first backward pass in this reduction round.
        self._first_pass = 1
        # True until this reduction round has determined which gradients can be submitted during the backward pass.
        self._has_deferred = False
        # Frozen parameters, which have no gradient hook.
        self._frozen: list[Slot] = []
        # Number of completed backward passes in this reduction round.
        self._ended = 0
        # Largest number of reduction rounds in any optimizer step so far.
        self._max_rounds = 1
        # True if another rank is waiting in step() for a further reduction round.
        self._peer_waiting = False
        # Readiness message of the current reduction round, as a tuple (Work, tensor, bytes).
        self._readiness: Any = None
        self._all_submitted = False
        self._weighing = agreement.Weighing(options.weight, options.op, options.compression)
        self.add(members.names, names)
        slot_of = {slot.parameter: slot for slot in self._slots}
        self._groups += [Group([slot_of[p] for p in group]) for group in options.groups]

    @property
    def name(self) -> str:
        """Name of the readiness message, unique in the job."""
        return f"gradients.ready.{self._slots[0].name}"

    def add(self, parameters: Iterable[torch.Tensor], names: dict[torch.Tensor, str]) -> None:
        """Start reducing the gradients of new parameters.

        An existing gradient of a new parameter counts as a result of the current backward pass.
        """
        before = len(self._slots)
        for p in parameters:
            self._slots.append(Slot(p, names[p], len(self._slots)))
            self._slots[-1].last_pass = self._state.number
        self._frozen += self._slots[before:]
        self.coverage.extend(self._slots[before:])
        self._bucketing.changed()
        self._hook_thawed()

    def close(self) -> None:
        """Remove the hooks. The caller must ensure that no operation is in flight."""
        for slot in self._slots:
            if slot.hook is not None:
                slot.hook.remove()
                slot.hook = None

    @property
    def _ranks(self) -> int:
        return len(self.options.process_set.ranks or ())

    @property
    def _accumulates(self) -> bool:
        """True if gradients that are already reduced must not be reduced again after the next backward pass.

        Reduced gradients are equal on all ranks, so an average over ranks with equal weights leaves them unchanged. A
        sum or a weighted average changes them, and so does an average if a joined rank contributes zeros.
        """
        return self.options.op != Average or ((self._some_joined or self._weighing.enabled) and self._rounds > 0)

    @property
    def in_a_step(self) -> bool:
        """True if backward passes have produced gradients since the last step or zero_grad().

        After a reduction round, the result is True only if earlier steps had several rounds, because another round may
        follow.
        """
        return self._ended > 0 or (self._rounds > 0 and self._max_rounds > 1)

    @property
    def busy(self) -> bool:
        """True if reductions of gradients are in flight."""
        return len(self.in_flight) > 0

    def reset(self) -> None:
        """Wait for operations in flight, ignoring their errors, and reset the reducer.

        This discards the compression residuals (error feedback) and restarts the count of backward passes.
        """
        self._leave_pass()
        self.in_flight.forget()
        self._failed = self._peer_waiting = False
        self._readiness = None
        self._rounds = 0
        self.coverage.restart()
        self._restart()

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes between reductions of the gradients."""
        self.options.passes = passes
        self.reset()

    def _hook_thawed(self) -> None:
        if self._frozen:
            for slot in self._frozen:
                if slot.parameter.requires_grad:
                    self._hooks.add(slot)
            self._frozen = [slot for slot in self._frozen if slot.hook is None]

    # -- in a backward pass ------------------------------------------------------------------------------------------

    def before_gradient(self, slot: Slot) -> None:
        """If the parameter's current gradient must not be reduced again, store it separately.

        Autograd calls this hook before it adds to the gradient. The hook is registered only once a program needs it.
        """
        if slot.last_pass < self._first_pass and self._accumulates:
            set_accumulated_aside(slot)

    def on_gradient(self, slot: Slot) -> None:
        """Handle a new gradient that the hook's fast path (in backward.py) does not cover."""
        if self._pass is None:
            self._begin_pass()
        if self._turn.thread != get_ident() and not self._turn.is_shared():
            # Mark the pass as failed. At its end, the reduction round reports the failure to the other ranks.
            self._failed = True
            raise RuntimeError(backward.TWO_THREADS)
        # Skip a gradient that is None, because a user-registered hook may have set it to None.
        if slot.parameter.grad is None:
            return
        state = self._state
        repeated = slot.last_pass == state.number
        slot.last_pass = state.number
        bucket = slot.bucket
        if repeated:
            slot.note_repeated()
        if slot.copy_on_arrival:
            bucket.take(slot)
        if slot.deferred:
            self._has_deferred = True
        if repeated or not state.thread:
            return
        if slot.deferred:
            if bucket is None and slot.group is None:
                self._bucketing.arrived.append(slot)
        elif bucket is not None:
            slot.record(slot.parameter)
        elif slot.group is None:
            self._bucketing.arrived.append(slot)
            self.in_flight.watch(slot)
            if self._bucketing.expects_more():
                self.in_flight.submit_gradient(slot)
        else:
            self.in_flight.watch(slot)
            slot.group.waiting_for -= 1
            if slot.group.waiting_for == 0:
                self.in_flight.submit_group(slot.group)

    def on_bucket(self, bucket: Bucket) -> None:
        """Submit a bucket whose last gradient has arrived, unless the backward pass is about to end."""
        if self._bucketing.expects_more():
            self.in_flight.submit_bucket(bucket)

    def _begin_pass(self) -> None:
        with self._turn.lock:
            thread = self._turn.begin()
            if self._pass is not None:
                return
            self._enter_job()
            self.recover()
            self._bucketing.settle()
            self._state.number += 1
            joined = backward.join(self)
            early = joined is not None and self._ended + 1 >= self.options.passes
            try:
                self._weigh()
            finally:
                # If the weight cannot be determined, let the backward pass fail, so that the failure is reported to the
                # other ranks.
                self._state.thread = thread if early and not self._weighing.deferred else 0
                self._pass = joined or backward.no_pass
                if joined is None:
                    # The end of this backward pass cannot be detected, so do not make other threads wait for it.
                    self._turn.end()

    def weigh_from_now(self) -> None:
        """If the program weights the current gradients, enable weighting in this and all later reduction rounds."""
        if self._weighing.starts():
            self.in_flight.op = Sum
            self._hooks.add_before_accumulation(self._slots)

    def _weigh(self, counts: bool = True) -> None:
        """Determine the weight of this rank's gradients in this reduction round, if the program weights gradients."""
        self.weigh_from_now()
        if self._weighing.enabled:
            dtypes = (slot.parameter.dtype for slot in self._slots)
            self.in_flight.factor = self._weighing.take(counts, self._ended > 0, torch.float16 in dtypes)

    def _enter_job(self) -> None:
        """Discard the previous job's state, because the new job can have different ranks."""
        if self._job is not frontend.job:
            self._job = frontend.job
            self._bucketing.drop_outdated()
            self._failed = self._peer_waiting = False
            # Do not reset _max_rounds, because it depends only on the program, which stays the same in the new job.
            self._rounds = self._ended = 0
            self.coverage.restart()

    def pass_ended(self) -> bool:
        """Record that a backward pass has ended; see ``backward.Reducer``."""
        self._ended += 1
        self._end_pass(with_round=self._ended >= self.options.passes)
        return self._ended >= self.options.passes

    def pass_failed(self) -> None:
        """Record a failed backward pass; see ``backward.Reducer``.

        Ranks whose pass succeeded wait for this rank at the end of their pass. This rank reports the failure before it
        next waits for any operation.
        """
        self._end_pass()
        self._ended += 1
        self._failed = True
        if self._is_due():
            handles.before_next_wait(self.recover)

    def _is_due(self) -> bool:
        return self._ended >= self.options.passes

    def _end_pass(self, with_round: bool = False) -> None:
        self._pass = None
        self._state.thread = 0
        self._turn.end(with_round)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def synchronize(self, only_new: bool = False) -> None:
        """Reduce all gradients that have not been reduced yet.

        All ranks of the process set must call this at least once per step. After a reduction round, it does nothing
        unless this rank has run another pass or another rank is waiting for it.

        Args:
            only_new: Skip gradients that no backward pass has produced since the last round. If False, and this rank
                has completed no round since its last step, it reduces all existing gradients.

        Raises:
            HorovodInternalError: If ranks disagree, or a rank was lost. All operations have ended in this case.
        """
        if not self._slots:
            return
        self._enter_job()
        self.recover()
        open_pass = self._pass is not None
        self._leave_pass()
        if self._rounds and not (open_pass or self._ended or self._peer_waiting):
            return
        more = True
        while more:
            more = self._round(at_step=True, only_new=only_new or self._rounds > 0) and self._peer_waiting
        self._peer_waiting = False

    def reduce_left_out(self) -> None:
        """Reduce the gradients that no reduction round of this step has included (coverage.py).

        All ranks must call this method, and the left-out gradients must belong to the same parameters on all ranks.

        Raises:
            RanksDisagreeError: If this rank has left-out gradients, but another rank has none and therefore continues
                without this reduction. The message names this rank's left-out gradients.
        """
        self._members.take_in(self)
        left_out = self.coverage.left_out()
        if left_out:
            # Treat the left-out gradients as if a backward pass had just produced them.
            self._state.number += 1
            for slot in left_out:
                slot.last_pass = self._state.number
            with naming(left_out):
                self._round(at_step=True)

    def stepped(self) -> None:
        """Reset the per-step state, after a step or when gradients are zeroed."""
        self.recover()
        self._max_rounds = max(self._max_rounds, self._rounds)
        self._rounds = 0
        self.coverage.restart()
        self._peer_waiting = False

    def zeroed(self) -> None:
        """Discard the results of unfinished backward passes when gradients are zeroed."""
        self.stepped()
        if self._ended and self._pass is None and not (self._failed or self.busy):
            self._restart()

    def _round(self, at_step: bool = False, only_new: bool = True) -> bool:
        """Run a reduction round, and return True if any rank entered it at the end of a backward pass."""
        try:
            self.begin(at_step, only_new)
            self.submit_missing()
            return self.finish()
        except Exception:
            self.reset()
            raise

    def begin(self, at_step: bool = False, only_new: bool = True, *, sole_reducer: bool = False) -> None:
        """Begin a reduction round; see ``backward.Reducer``.

        ``at_step`` is True if the caller is ``step()``, and False at the end of a backward pass. For ``only_new``, see
        ``synchronize``.
        """
        with torch.no_grad():
            self.in_flight.sole_reducer = sole_reducer
            self._members.take_in(self)
            self._contribution.gather()
            self._enter_job()
            self._bucketing.settle()
            if self._state.number < self._first_pass:
                # This rank has run no backward pass in this round, so its weight is not determined yet.
                self._weigh(self._weighing.counts_without_pass(() if only_new else self._slots))
            flags = self._contribution.flags(self._first_pass if only_new else 0)
            wishes = self._bucketing.wishes()
            # Readiness message of this rank, which the engine overwrites with the maximum over all ranks.
            message = agreement.encode_readiness(
                self._ranks,
                self.options.process_set.rank(),
                flags,
                wishes,
                at_step=at_step,
                failed=frontend.require_job().rank + 1 if self._failed else 0,
                rounds=self._rounds,
                max_rounds=self._max_rounds,
                steps=self.progress.steps.now(),
                epoch=epochs.now(),
            )
            message += self._weighing.message(self.options.process_set.rank(), self._ranks)
            vector = torch.frombuffer(message, dtype=torch.uint8)
            self._readiness = self.in_flight.exchange_readiness(vector, self.name), vector, message
            self._all_submitted = not self._weighing.deferred and self._contribution.submit_local()

    def submit_missing(self, seconds: float = -1.0) -> bool:
        """Submit zeros for gradients that exist only on other ranks; see ``backward.Reducer``."""
        if self._all_submitted and seconds < 0:
            return True
        work, vector, message = self._readiness
        try:
            if seconds >= 0 and not work.wait(seconds):
                return False
            handles.wait(work, vector)
        except RanksDisagreeError as error:
            agreement.explain(error, self.name)
            raise
        if not self._all_submitted:
            with torch.no_grad():
                if self._weighing.deferred:
                    self.in_flight.factor = self._weighing.share(self._weighing.split(message, self._ranks)[1])
                    self._contribution.submit_local()
                combined = agreement.flags_of(message, self._ranks, len(self._slots))
                self._contribution.submit_missing(combined, self._accumulates)
        return True

    def finish(self) -> bool:
        """Wait for all results.

        Returns:
            True if any rank ran this round at the end of a backward pass rather than in ``step()``.

        Raises:
            RanksDisagreeError: If other ranks do not run this round. The message explains why.
        """
        with torch.no_grad():
            try:
                self.in_flight.finish()
            except RanksDisagreeError as error:
                agreement.explain(error, self.name)
                raise
            message, total, ended = self._weighing.split(self._readiness[2], self._ranks)
            self._readiness = None
            readiness = agreement.decode_readiness(message, self._ranks)
            self.progress.check(readiness, self.options.process_set.ranks)
            self.coverage.add(readiness.flags)
            if self._weighing.enabled:
                grads = [s.parameter.grad for s in self._slots if readiness.flags[s.index]]
                self._weighing.divide(grads, total, ended, self._rounds == 0, self.options.process_set)
            if self._accumulates:
                for slot in self._slots:
                    add_accumulated(slot)
            self._bucketing.propose(self._slots, readiness.flags)
        self._rounds += 1
        self.reductions += 1
        self._some_joined = not readiness.all_present
        if self._some_joined:
            self._hooks.add_before_accumulation(self._slots)
        self._peer_waiting = readiness.at_step and self._rounds < readiness.max_rounds
        self._restart(reduced=True)
        return readiness.at_end

    @property
    def has_zero_weight(self) -> bool:
        """True if the step must be skipped because the total weight of its gradients on all ranks is 0."""
        return self._rounds > 0 and self._weighing.total == 0

    def _restart(self, reduced: bool = False) -> None:
        if self._has_deferred:
            for slot in self._slots:
                if slot.last_pass >= self._first_pass:
                    slot.deferred = slot.repeated
            self._has_deferred = False
        self._first_pass = self._state.number + 1
        self.in_flight.forget_watched(reduced)
        if self._hooks.before_accumulation:
            for slot in self._slots:
                slot.accumulated = None
        # Register hooks on parameters that the program has unfrozen.
        self._hook_thawed()
        for group in self._groups:
            group.waiting_for = len(group.members)
        self._bucketing.restart()
        self._ended = 0
        self._turn.end_round()
