"""Where steps of training end, as the faces tell: ``hvd.step()``, optimizers, and what programs wait for their data.

A mark costs about a microsecond, and nothing without a job. What becomes of the marks: ``telemetry/account.py``.
"""

import threading
from collections.abc import Callable


class Marks:
    """Of this process. One kind of mark counts: those of ``tell`` from the first one on; else those of one optimizer;
    else, where the engine was asked to look for them, it finds steps by itself."""

    __slots__ = (
        "_find",
        "_finding",
        "_leader",
        "_other",
        "_step",
        "_thread",
        "_told",
        "_waiting",
        "_waits",
        "back",
        "beside",
        "data_seen",
        "kept",
    )

    def __init__(self) -> None:
        self._step: Callable[[int], None] | None = None
        self._find: Callable[[], None] | None = None
        self._finding = False
        self.data_seen = False
        """Does anybody call ``waited``?"""
        self.beside: Callable[[], None] | None = None
        """Called after each mark that counts, in jobs that begin later."""
        self.kept: Callable[[], None] | None = None
        """Called when an elastic state is committed."""
        self.back: Callable[[int, int | None], None] | None = None
        """Called on all ranks when a state goes on after a failure: the rank whose state all take, and how many steps
        are done again; None: those since the last commit."""
        self._forget()

    def _forget(self) -> None:
        self._told = False
        self._leader = self._other = 0
        self._thread = 0
        self._waits = 0  # ns since the last mark
        self._waiting = False

    def open(self, step: Callable[[int], None], find: Callable[[], None]) -> None:
        """A job begins. ``step``: called with each mark that counts, and the ns that the program waited for its data.
        ``find``: makes the engine look for steps."""
        self._forget()
        beside = self.beside
        self._step, self._find = step, find
        if beside is not None:

            def both(waits: int) -> None:
                step(waits)
                beside()

            self._step = both
        if self._finding:
            find()

    def close(self) -> None:
        """The job is over."""
        self._step = self._find = None

    def tell(self) -> None:
        """The program says that a step has ended."""
        self._told = True
        self._mark()

    def optimizer(self, who: object) -> None:
        """An optimizer has made its step. A program may have several; the one that makes the most steps counts."""
        if self._step is None or self._told:
            return
        number = id(who)
        if number != self._leader:
            if self._leader and number != self._other:
                self._other = number
                return
            self._leader = number  # it has made two steps since the other one's last
        self._other = 0
        self._mark()

    def find(self) -> None:
        """The program's steps run within its framework, where nobody sees them end."""
        self._finding = True
        if self._find is not None:
            self._find()

    def begin_wait(self) -> bool:
        """The program is about to wait for data: does it count? Not in other threads than the one that makes steps, nor
        within another wait."""
        if self._step is None or self._waiting:
            return False
        here = threading.get_ident()
        if here != self._thread and (self._thread or threading.current_thread() is not threading.main_thread()):
            return False
        self._waiting = True
        return True

    def waited(self, ns: int) -> None:
        """That wait is over, after so many ns."""
        self._waiting = False
        self._waits += ns

    def _mark(self) -> None:
        step = self._step
        if step is None:
            return
        self._thread = threading.get_ident()
        waits, self._waits = self._waits, 0
        step(waits)


marks = Marks()
