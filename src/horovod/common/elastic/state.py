"""Elastic state, which survives failures and membership changes.

A *commit* is a copy of the state in memory. A rank can roll back to the commit after a failure. A *sync* copies the
state of one rank to all ranks, including new workers.
"""

import copy
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from horovod.common.contract.membership import HostUpdateResult
from horovod.common.elastic.agreement import Outcome, Standing, compare_names, decide, find_mismatch, holder
from horovod.common.elastic.order import Resumes
from horovod.common.elastic.own import PerRank, accumulation_pending, drop_accumulated, seats
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.frontends import Frontend
from horovod.common.objects import largest, numbers_of_rank_0
from horovod.common.training_loop.steps import marks

Description = tuple[list[str], bool]
"""Attribute names of a state, and True if the state is new."""
Broadcast = Callable[..., Any]
"""``broadcast_object(obj, root_rank=0, name=...)`` of a frontend."""
Gather = Callable[..., list[Any]]
"""``allgather_object(obj, name=...)`` of a frontend."""

# Maximum number of checks that defer a host update. A program that checks only within steps must not defer it forever.
_MAX_DEFERRED = 1000


class State(ABC):
    """Base class of elastic states. A subclass implements ``save``, ``restore`` and ``sync``."""

    _frontend: Frontend | None = None
    """Frontend whose operations check for host updates in each step, or None to use ``bcast_object``."""
    _progress = 0  # progress counter; each commit and each check for host updates increments it

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int]) -> None:
        """Create a state from the frontend's ``bcast_object`` and ``get_rank`` functions."""
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, HostUpdateResult]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._load: Callable[[], None] | None = None
        self._other_size: Callable[[], bool] | None = None
        self._adapts = False  # True if the loaded checkpoint was written by a job of a different size
        self._deferred = 0

    def resume_with(self, load: Callable[[], None]) -> None:
        """Set a function that loads a checkpoint if this rank must provide the job's initial state.

        A new rank 0 must provide the initial state if the previous rank 0 is lost before the first sync.
        """
        self._load = load

    def loaded_of(self, other_size: Callable[[], bool]) -> None:
        """Mark this rank's state as loaded from a checkpoint.

        Args:
            other_size: Function that returns True if the job that wrote the checkpoint had a different number of ranks.
        """
        self._other_size = other_size

    def _begin(self, new: Sequence[bool], root: int) -> None:
        """Prepare to adopt the state of rank ``root``. ``new[rank]`` is True if the rank was never synchronized."""
        load, self._load, self._adapts = self._load, None, False
        if not all(new):
            return
        self._load = load  # a sync that fails is repeated, and must then load the checkpoint again
        if load is not None and root == self._rank():
            load()
        # If all ranks are new, ``root`` is rank 0. Only rank 0 knows whether the checkpoint's job had a different size.
        self._adapts = self._bcast_object(self._other_size is not None and self._other_size())

    def on_resumed(self) -> None:
        """Call the reset callbacks if the state was loaded from a checkpoint of a job with a different number of ranks.

        Called after the first ``sync``.
        """
        if not self._adapts:
            return
        self._adapts = False
        for callback in self._reset_callbacks:
            callback()
        self.save()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Register callbacks, called without arguments after each membership change.

        Use callbacks to adapt values that depend on the number of ranks, such as a learning rate. A callback runs
        before the state is synchronized. If the state rolls back to the last commit, the callback runs after the
        rollback. New ranks do not run callbacks but receive the resulting state, so callbacks must not use collectives.

        If a job continues from a checkpoint that a different number of ranks wrote, all ranks run the callbacks after
        the first sync.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Reset the state and run the reset callbacks after a membership change."""
        self._host_messages = queue.Queue()  # drop host updates about the previous membership
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Store a host update until ``check_host_updates`` handles it. Only rank 0's updates count. Thread-safe."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Save the state and check for host updates. All ranks must call this at the same point of the program."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise HostsUpdatedInterrupt on all ranks if rank 0 knows of a host update.

        All ranks must call this at the same point of the program. If a step has several backward passes, the interrupt
        is deferred to the end of the step.

        Raises:
            HostsUpdatedInterrupt: If hosts were added or removed; raised on all ranks.
            HorovodInternalError: If a peer is lost.
        """
        before, update = self._last_updated_timestamp, HostUpdateResult.no_update
        last = before
        held_back = self._host_messages.qsize() > 0 and self._in_a_step() and self._deferred < _MAX_DEFERRED
        self._deferred = self._deferred + 1 if held_back else 0
        while not held_back and not self._host_messages.empty():
            timestamp, news = self._host_messages.get()
            if timestamp > last:
                last = timestamp
                update |= news
        try:
            before, last, kind = self._from_rank_0((before, last, int(update)))
        except HorovodInternalError as error:
            # The program checks for updates only at safe points, so training can continue from the current state.
            error.handed_over = True  # type: ignore[attr-defined]
            raise
        self._last_updated_timestamp = last
        self._progress += 1
        if last > before:
            raise HostsUpdatedInterrupt(kind == HostUpdateResult.removed)

    def _from_rank_0(self, numbers: tuple[float, float, float]) -> tuple[float, ...]:
        """Broadcast rank 0's timestamps of host updates to all ranks.

        In nearly all steps, rank 0 has no host update. The ranks then exchange only one byte, and the result is
        (previous timestamp, previous timestamp, 0).

        Args:
            numbers: This rank's (timestamp of the previous update, timestamp of the latest update, kind of the latest
                one).
        """
        if self._frontend is None:
            return tuple(self._bcast_object(numbers))
        before, last, _ = numbers
        if not largest(self._rank() == 0 and last > before, "elastic.news", self._frontend):
            return before, before, 0
        return numbers_of_rank_0(numbers, "elastic.updates", self._frontend)

    def _in_a_step(self) -> bool:
        """Return True if an interrupt now would lose completed work."""
        return accumulation_pending()

    def begin_step(self) -> None:
        """Drop accumulated gradients of an unfinished step. Called before ``sync``."""
        drop_accumulated()

    @abstractmethod
    def save(self) -> None:
        """Save a copy of the current state."""

    @abstractmethod
    def restore(self) -> None:
        """Restore the state from the saved copy."""

    @abstractmethod
    def sync(self) -> None:
        """Synchronize the state of all ranks. All ranks must call this together."""

    def reset(self) -> None:
        """Adapt the state to the new members of the job."""
        return None


def check_states_match(descriptions: Sequence[Description], rank: int) -> None:
    """Check that the states of all ranks match.

    Args:
        descriptions: Attribute names of each rank, and True if its state is new.
        rank: This rank.

    Raises:
        ValueError: If this rank's attributes differ from those of the job, or if states differ when the job begins. The
            message names ranks and attributes.
        HostsUpdatedInterrupt: If other ranks' attributes differ. Those ranks exit with an error, and this rank can
            continue without them.
    """
    misfit = find_mismatch(descriptions, rank)
    if misfit is None:
        return
    if misfit.is_local:
        raise ValueError(misfit.why)
    raise HostsUpdatedInterrupt


class Keeping(State):
    """Base class of states that can continue after a failure without rolling back to the last commit.

    After a failure, ranks report their progress and choose the rank whose state they all adopt (``agreement``). A
    subclass implements the steps of this procedure.

    Attributes:
        _whole: True if training can continue from the current state.
        _between: True while another rank's state is being received.
        _settled: Rank whose state all ranks take, and the progress of that state.
    """

    _whole = True
    _between = False
    _settled: tuple[int, Standing] | None = None

    def failed(self, error: HorovodInternalError) -> None:
        """Record a failure of the training function. The ranks later decide together how to continue."""
        if not self._between:
            self._whole = getattr(error, "handed_over", False) or self.before_step(error)
        self._between = False

    @abstractmethod
    def before_step(self, error: HorovodInternalError) -> bool:
        """Return True if the error occurred after one step was complete and before the next had changed anything."""

    @abstractmethod
    def standing(self, whole: bool) -> Standing:
        """Return this rank's progress. ``whole`` tells whether training can continue from the current state."""

    @abstractmethod
    def agree(self, standing: Standing) -> list[Standing]:
        """Exchange progress reports, and return them in rank order. Raises an error if the ranks' states differ."""

    @abstractmethod
    def take(self, root: int) -> None:
        """Copy the state of rank ``root`` to all ranks."""

    @abstractmethod
    def adopted(self, root: Standing) -> None:
        """Record that all ranks have adopted the same state. ``root`` is the progress of the rank that provided it."""

    def settle(self, needed: bool = True) -> Outcome | None:
        """Agree with all ranks on whose state to adopt. This is the first half of ``sync``.

        If no rank is certain that training can continue from its current state, all ranks return to their last commit.
        They must do so before the reset callbacks run, because restoring the commit would overwrite the callbacks'
        changes.

        Args:
            needed: False if ``sync`` will not be called. The method then does nothing.

        Returns:
            The decision, or None if ``needed`` is False.
        """
        self._settled = None
        if not needed:
            return None
        standings = self.agree(self.standing(self._whole))
        outcome = decide(standings)
        self._begin([one.new for one in standings], outcome.root)
        if outcome.restore:
            self._whole = False
            self.restore()
        self._settled = outcome.root, standings[outcome.root]
        return outcome

    def sync(self) -> None:
        """Copy the state of the most advanced rank to all ranks, or its last commit if its current state is unsafe.

        The result counts as a commit.
        """
        if self._settled is None:
            self.settle()
        assert self._settled is not None
        (number, root), self._settled = self._settled, None
        # If the old and new states are equal, even an interrupted transfer leaves a valid state.
        self._whole = self._whole and self.standing(self._whole).steps == root.steps
        self._between = True
        self.take(number)
        self._between = False
        self._whole = True
        self.adopted(root)
        self.save()


class ObjectState(State):
    """Elastic state whose attributes can be of any type that can be copied and pickled."""

    _OWN: ClassVar[frozenset[str]] = frozenset(("bcast_object", "get_rank"))

    def __init__(
        self,
        bcast_object: Broadcast,
        get_rank: Callable[[], int],
        allgather_object: Gather | None = None,
        **kwargs: Any,
    ) -> None:
        """Create a state with the attributes ``kwargs``.

        Args:
            bcast_object: ``broadcast_object`` of the frontend.
            get_rank: ``rank`` of the frontend.
            allgather_object: ``allgather_object`` of the frontend, or None. With it, all ranks raise an error if their
                attribute names differ.
            **kwargs: Attributes and their initial values. The names must be the same on all ranks.

        Raises:
            ValueError: If an attribute cannot be copied, or its name is reserved.
        """
        super().__init__(bcast_object, get_rank)
        self._gather = allgather_object
        # True until this rank's first sync with other ranks.
        self._new = True
        # Seat of this process, or None before the first sync. A seat is a number that identifies a set of per-rank
        # values (such as random states). It stays the same if the process gets another rank (see `own.seats`).
        self._seat: int | None = None
        # Per-rank values of all ranks as of the last commit, keyed by seat.
        self._own_of: dict[int, dict[str, Any]] = {}
        self._saved_own: dict[str, Any] = {}
        for name, value in kwargs.items():
            if hasattr(type(self), name) or name in self.__dict__:
                raise ValueError(f"the state's attribute {name!r} has the name of something that states have")
            setattr(self, name, value)
        self._saved_state: dict[str, Any] = {}
        self._names = list(kwargs)
        self._save_attributes()

    def save(self) -> None:
        self._save_attributes()

    def commit(self) -> None:
        """Save the state, exchange per-rank values and check for host updates. All ranks must call this together."""
        self.save()
        self._report_own()
        self.check_host_updates()

    def restore(self) -> None:
        for name, value in self._saved_own.items():
            getattr(self, name).put(_copy(name, value))
        self._set_attributes({name: _copy(name, value) for name, value in self._saved_state.items()})

    def state_dict(self) -> dict[str, Any]:
        """Return the current attributes by name, without copying them."""
        return self._attributes()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a result of ``state_dict``, possibly from another job. The loaded state counts as a commit.

        Raises:
            ValueError: If the attributes differ from those of this state. The message names the attributes.
        """
        self._check_loaded(state_dict, self._attributes())
        self._set_attributes({name: state_dict[name] for name in self._attributes()})
        self.save()

    @staticmethod
    def _check_loaded(state_dict: dict[str, Any], names: Iterable[str]) -> None:
        difference = compare_names([sorted(state_dict), sorted(names)])
        if difference:
            raise ValueError(difference.replace("rank 1", "this state").replace("rank 0", "what is loaded"))

    def reset(self) -> None:
        for name in self._names:
            if isinstance(value := getattr(self, name), Resumes):
                value.reset()

    def sync(self) -> None:
        """Give all ranks the state of the first rank that is not new, or of rank 0 when the job begins.

        The result counts as a commit. Raises an error if the ranks' states do not match (``check_states_match``).
        """
        self._sync_attributes(self._compare())

    def _save_attributes(self) -> None:
        # Copy all attributes before replacing the last commit, which must stay intact if one cannot be copied.
        saved = {name: _copy(name, value) for name, value in self._attributes().items()}
        self._saved_own = {name: _copy(name, one.get()) for name, one in self._own().items()}
        self._saved_state = saved
        self._progress += 1
        if marks.kept is not None:
            marks.kept()

    def _own(self) -> dict[str, PerRank]:
        return {name: one for name in self._names if isinstance(one := getattr(self, name), PerRank)}

    def _report_own(self) -> None:
        """Share each rank's committed per-rank values with all ranks."""
        if not self._saved_own or self._gather is None or self._seat is None:
            return
        try:
            gathered = self._gather((self._seat, self._saved_own), name="elastic.own")
        except HorovodInternalError as error:
            error.handed_over = True  # type: ignore[attr-defined]
            raise
        gone = {seat: own for seat, own in self._own_of.items() if seat not in dict(gathered)}
        self._own_of = {**gone, **dict(gathered)}

    def _take_own(self, root: int) -> None:
        """Give the new ranks the per-rank values of lost ranks. Rank ``root`` sends these values."""
        if self._gather is None or not (own := self._own()):
            return
        gathered = self._gather((self._seat, self._own_of if self._rank() == root else {}), name="elastic.seats")
        self._own_of = gathered[root][1]
        new = self._seat is None
        self._seat = seats([seat for seat, _ in gathered], self._own_of)[self._rank()]
        if new:
            for name, value in self._own_of.get(self._seat, {}).items():
                own[name].put(value)
                # Add the received value to the commit immediately, because a later part of `sync` may fail.
                self._saved_own[name] = _copy(name, value)

    def _attributes(self) -> dict[str, Any]:
        """Return the synchronized attributes in a copyable and picklable form."""
        own = self._own()
        values = {name: getattr(self, name) for name in self._names if name not in own}
        return {name: one.state_dict() if isinstance(one, Resumes) else one for name, one in values.items()}

    def _set_attributes(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(one := getattr(self, name), Resumes):
                one.load_state_dict(value)
            else:
                setattr(self, name, value)

    def _compare(self) -> int:
        """Check that all ranks' states match, and return the rank whose state is adopted.

        Call this before broadcasting any attribute.
        """
        if self._gather is None:
            return 0
        descriptions = self._gather(([*self._names, *self._described()], self._new), name="elastic.state.names")
        check_states_match(descriptions, self._rank())
        new = [new for _, new in descriptions]
        self._begin(new, holder(new))
        return holder(new)

    def _described(self) -> list[str]:
        """Describe properties, besides attribute names, that must match on all ranks."""
        return []

    def _sync_attributes(self, root: int) -> None:
        """Replace this rank's attributes with those of rank ``root``. This is the last step of ``sync``."""
        self._take_own(root)
        if self._attributes() or self._gather is None:
            self._take_attributes(root)
        self._save_attributes()
        self._new = False

    def _take_attributes(self, root: int) -> None:
        mine = self._attributes()
        theirs = self._bcast_object(mine, root_rank=root) if root else self._bcast_object(mine)
        difference = compare_names([list(theirs), list(mine)])
        if difference:
            raise ValueError(difference.replace("rank 1", f"rank {self._rank()}").replace("rank 0", f"rank {root}"))
        self._set_attributes(theirs)


def _copy(name: str, value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise cannot_be_copied(name, value, error) from error


def cannot_be_copied(name: str, value: Any, error: Exception) -> ValueError:
    """Create the ValueError for an attribute that cannot be copied."""
    return ValueError(
        f"the state's attribute {name!r} ({type(value).__name__}) cannot be copied: {type(error).__name__}: {error}"
    )
