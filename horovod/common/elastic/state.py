"""What an elastic program keeps over failures and changes of members.

A *commit* is a copy in memory, to which a failed rank goes back; *sync* gives all ranks the same, which is how a new
worker gets its state at all.
"""

import copy
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from horovod.common.contract.host_updates import HostUpdateResult
from horovod.common.elastic import accumulated
from horovod.common.elastic.agreement import Outcome, Standing, compare_names, decide, find_misfit, holder
from horovod.common.elastic.numbers import largest, numbers_of_rank_0
from horovod.common.elastic.own import PerRank, seats
from horovod.common.elastic.walk import Resumes
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.faces import Face
from horovod.common.steps import marks

Told = tuple[list[str], bool]
"""The names of a state's attributes, and whether it is new."""
Broadcast = Callable[..., Any]
"""``broadcast_object(obj, root_rank=0, name=...)`` of a face."""
Gather = Callable[..., list[Any]]
"""``allgather_object(obj, name=...)`` of a face."""

_HELD_BACK = 1000  # calls of a program that is never between two steps when it asks


class State(ABC):
    """Saved, restored and synchronised over the ranks. A subclass says of what (``save``, ``restore``, ``sync``)."""

    _face: Face | None = None
    """Whose operations ask for changed hosts, in each step; None: ``bcast_object`` does."""
    _come_further = 0  # how often the program has: grows with each commit

    def __init__(self, bcast_object: Broadcast, get_rank: Callable[[], int]) -> None:
        """``bcast_object``, ``get_rank``: of the face."""
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, HostUpdateResult]] = queue.Queue()
        self._last_updated_timestamp: float = 0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._load: Callable[[], None] | None = None
        self._other_size: Callable[[], bool] | None = None
        self._adapts = False  # all have what another number of ranks has written
        self._held_back = 0

    def resume_with(self, load: Callable[[], None]) -> None:
        """``load`` gives this state what training goes on from, if this rank comes to be the one whose state all get
        in a job that begins: the rank that has it now may be lost before that."""
        self._load = load

    def loaded_of(self, other_size: Callable[[], bool]) -> None:
        """This rank's state is of a checkpoint. ``other_size``: was that written by another number of ranks?"""
        self._other_size = other_size

    def _begin(self, new: Sequence[bool], root: int) -> None:
        """All are about to get the state of ``root``. ``new``: who has never been brought together with others."""
        load, self._load, self._adapts = self._load, None, False
        if not all(new):
            return
        self._load = load  # should this be interrupted
        if load is not None and root == self._rank():
            load()
        self._adapts = self._bcast_object(self._other_size is not None and self._other_size())  # root is 0

    def on_resumed(self) -> None:
        """All ranks have the state now. If it is of a checkpoint of another number of ranks, the members have changed
        since then."""
        if not self._adapts:
            return
        self._adapts = False
        for callback in self._reset_callbacks:
            callback()
        self.save()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """They are called without arguments after each change of members, when the state has gone back to its last
        commit, if it has to, and before it is synchronised: for what depends on their number, a learning rate for
        one. Not on ranks that are new, which get what the others have made of it; so no collectives in them. A job that
        goes on from a checkpoint of another number of ranks calls them too: on all ranks, once they have the state."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The members have changed."""
        self._host_messages = queue.Queue()  # this was told before
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: HostUpdateResult) -> None:
        """Hosts have changed; the next ``check_host_updates`` of rank 0 knows it. Any thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves, then ``check_host_updates``. All ranks call it at the same place of the program."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks when rank 0 knows of changed hosts, on none otherwise. All ranks
        call it at the same place. In the middle of a step of several backward passes they go on to its end."""
        before, update = self._last_updated_timestamp, HostUpdateResult.no_update
        last = before
        held_back = self._host_messages.qsize() > 0 and self._in_a_step() and self._held_back < _HELD_BACK
        self._held_back = self._held_back + 1 if held_back else 0
        while not held_back and not self._host_messages.empty():
            timestamp, news = self._host_messages.get()
            if timestamp > last:
                last = timestamp
                update |= news
        try:
            before, last, told = self._told_by_rank_0((before, last, int(update)))
        except HorovodInternalError as error:
            # Where members may join and leave, the state can be handed over as it is.
            error.handed_over = True  # type: ignore[attr-defined]
            raise
        self._last_updated_timestamp = last
        self._come_further += 1
        if last > before:
            raise HostsUpdatedInterrupt(told == HostUpdateResult.removed)

    def _told_by_rank_0(self, numbers: tuple[float, float, float]) -> tuple[float, ...]:
        """``numbers``: when this rank was told last, before and now, and what. As they were where rank 0 knows nothing
        new, as in nearly all steps: these exchange one byte."""
        if self._face is None:
            return tuple(self._bcast_object(numbers))
        before, last, _ = numbers
        if not largest(self._rank() == 0 and last > before, "elastic.news", self._face):
            return before, before, 0
        return numbers_of_rank_0(numbers, "elastic.updates", self._face)

    def _in_a_step(self) -> bool:
        """Would something be lost if the program were interrupted here that it counts as done?"""
        return accumulated.pending()

    def begin_step(self) -> None:
        """Drop what belongs to a step that was not finished; called before ``sync``."""
        accumulated.drop()

    @abstractmethod
    def save(self) -> None:
        """Keeps a copy of what the state is now."""

    @abstractmethod
    def restore(self) -> None:
        """Goes back to the copy."""

    @abstractmethod
    def sync(self) -> None:
        """Gives all ranks the same. All of them call it."""

    def reset(self) -> None:
        """Adapts what depends on the members of the job."""
        return None


def fit_together(told: Sequence[Told], rank: int) -> None:
    """Raises ValueError naming ranks and attributes where this rank's differ from those of the job, or where the states
    of a job that begins differ. HostsUpdatedInterrupt on ranks that can go on without those that differ, which end."""
    misfit = find_misfit(told, rank)
    if misfit is None:
        return
    if misfit.mine:
        raise ValueError(misfit.why)
    raise HostsUpdatedInterrupt


class Keeping(State):
    """A state that may go on after a failure as it is, without going back to the last commit (``agreement``).

    A subclass knows when it holds what training can go on with (``before_step``), tells what ranks say of themselves
    (``standing``, ``agree``), and how all get what one of them holds (``take``).
    """

    _whole = True  # training can go on with what this rank holds
    _between = False  # it is getting another rank's state, and has a part of it perhaps
    _settled: tuple[int, Standing] | None = None  # from whom all take the state, and where that one stands

    def failed(self, error: HorovodInternalError) -> None:
        """The program's function has raised this. What follows from it is decided when the ranks have met again."""
        if not self._between:
            self._whole = getattr(error, "handed_over", False) or self.before_step(error)
        self._between = False

    @abstractmethod
    def before_step(self, error: HorovodInternalError) -> bool:
        """Had the program finished with its last step, and changed nothing in the next one, when this was raised?"""

    @abstractmethod
    def standing(self, whole: bool) -> Standing:
        """Of this rank."""

    @abstractmethod
    def agree(self, standing: Standing) -> list[Standing]:
        """Exchanges them: by rank. Raises what ``fit_together`` raises."""

    @abstractmethod
    def take(self, root: int) -> None:
        """Gives all ranks what the rank ``root`` holds."""

    @abstractmethod
    def taken(self, root: Standing) -> None:
        """All have what a rank with this standing held."""

    def settle(self, needed: bool = True) -> Outcome | None:
        """The first half of ``sync``: all agree on whose state they take, and go back to their last commit where none
        is certain to be one in which training can go on. Callbacks for changes of members come in between, which would
        adapt in vain what is put back later. ``needed``: False when there will be no ``sync``; None then."""
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
        """Gives all ranks the state of the one that has come furthest, or the last commit where that is not certain to
        be a state in which training can go on. Counts as committed then."""
        if self._settled is None:
            self.settle()
        assert self._settled is not None
        (number, root), self._settled = self._settled, None
        # Should this be interrupted: what is overwritten by the same is still whole.
        self._whole = self._whole and self.standing(self._whole).steps == root.steps
        self._between = True
        self.take(number)
        self._between = False
        self._whole = True
        self.taken(root)
        self.save()


class ObjectState(State):
    """Attributes, given as keywords, of any type that can be copied and pickled."""

    _OWN: ClassVar[frozenset[str]] = frozenset(("bcast_object", "get_rank"))

    def __init__(
        self,
        bcast_object: Broadcast,
        get_rank: Callable[[], int],
        allgather_object: Gather | None = None,
        **kwargs: Any,
    ) -> None:
        """``kwargs``: the attributes and their first values, the same names on all ranks. ``allgather_object``: with
        it all ranks get the error when names differ. Raises ValueError naming an attribute that cannot be copied, or
        whose name is taken."""
        super().__init__(bcast_object, get_rank)
        self._gather = allgather_object
        self._new = True  # it has not been synchronised with others yet
        self._seat: int | None = None  # whose own values it has
        self._own_of: dict[int, dict[str, Any]] = {}  # by seat, as of the last commit
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
        self.save()
        self._tell_own()
        self.check_host_updates()

    def restore(self) -> None:
        for name, value in self._saved_own.items():
            getattr(self, name).put(_copy(name, value))
        self._set_attributes({name: _copy(name, value) for name, value in self._saved_state.items()})

    def state_dict(self) -> dict[str, Any]:
        """All of it as it is now, by name. Not a copy."""
        return self._attributes()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What ``state_dict`` gave, perhaps in another job of another size. Counts as committed. Raises ValueError
        naming attributes that differ."""
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
        """Gives all ranks what the first one that is not new has now, rank 0 in a job that begins; it counts as
        committed. Raises what ``fit_together`` raises."""
        self._sync_attributes(self._compare())

    def _save_attributes(self) -> None:
        # Whole before it replaces the last one: an attribute that cannot be copied leaves that as it was.
        saved = {name: _copy(name, value) for name, value in self._attributes().items()}
        self._saved_own = {name: _copy(name, one.get()) for name, one in self._own().items()}
        self._saved_state = saved
        self._come_further += 1
        if marks.kept is not None:
            marks.kept()

    def _own(self) -> dict[str, PerRank]:
        return {name: one for name in self._names if isinstance(one := getattr(self, name), PerRank)}

    def _tell_own(self) -> None:
        """All ranks know then what each has of its own, as it was committed."""
        if not self._saved_own or self._gather is None or self._seat is None:
            return
        try:
            told = self._gather((self._seat, self._saved_own), name="elastic.own")
        except HorovodInternalError as error:
            error.handed_over = True  # type: ignore[attr-defined]
            raise
        gone = {seat: own for seat, own in self._own_of.items() if seat not in dict(told)}
        self._own_of = {**gone, **dict(told)}

    def _take_own(self, root: int) -> None:
        """Who is new goes on with what one who is gone had; ``root``: the rank that knows."""
        if self._gather is None or not (own := self._own()):
            return
        told = self._gather((self._seat, self._own_of if self._rank() == root else {}), name="elastic.seats")
        self._own_of = told[root][1]
        new = self._seat is None
        self._seat = seats([seat for seat, _ in told], self._own_of)[self._rank()]
        if new:
            for name, value in self._own_of.get(self._seat, {}).items():
                own[name].put(value)
                self._saved_own[name] = _copy(name, value)  # it counts as committed, should the rest fail

    def _attributes(self) -> dict[str, Any]:
        """The attributes that all ranks share, as they are copied and sent."""
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
        """Do the states of all ranks fit together? To be asked before anything is broadcast. Returns the rank from
        which all take theirs."""
        if self._gather is None:
            return 0
        told = self._gather(([*self._names, *self._described()], self._new), name="elastic.state.names")
        fit_together(told, self._rank())
        new = [new for _, new in told]
        self._begin(new, holder(new))
        return holder(new)

    def _described(self) -> list[str]:
        """What else has to be the same on all ranks, in words."""
        return []

    def _sync_attributes(self, root: int) -> None:
        """The last part of ``sync``: the state is not new any more."""
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
    """The error of a commit, naming the attribute."""
    return ValueError(
        f"the state's attribute {name!r} ({type(value).__name__}) cannot be copied: {type(error).__name__}: {error}"
    )
