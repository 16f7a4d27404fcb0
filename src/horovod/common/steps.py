"""Detection of the end of training steps: ``hvd.step()``, optimizer steps, and time spent waiting for data.

A mark takes about a microsecond, and no time without a job. ``telemetry/account.py`` uses the marks.
"""

import threading
from collections.abc import Callable


class Marks:
    """Step marks of this process. Only one source counts.

    Once ``tell`` is called, only its marks count. Otherwise those of one optimizer count. Otherwise, if ``find`` was
    called, the engine detects steps itself.
    """

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
        """True if the program calls ``waited``."""
        self.beside: Callable[[], None] | None = None
        """Called after each mark that counts, in jobs that start after it was set."""
        self.kept: Callable[[], None] | None = None
        """Called when an elastic state is committed."""
        self.back: Callable[[int, int | None], None] | None = None
        """Called on all ranks when training continues from a state after a failure.

        Arguments: the rank whose state is restored, and the number of steps to repeat; None: those since the last
        commit.
        """
        self._forget()

    def _forget(self) -> None:
        self._told = False
        self._leader = self._other = 0
        self._thread = 0
        self._waits = 0  # ns since the last mark
        self._waiting = False

    def open(self, step: Callable[[int], None], find: Callable[[], None]) -> None:
        """Begin to mark the steps of a job.

        Args:
            step: Called at each mark that counts, with the ns that the program waited for data since the last mark.
            find: Makes the engine detect steps.
        """
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
        """Stop marking steps at the job's end."""
        self._step = self._find = None

    def tell(self) -> None:
        """Mark the end of a step, as told by the program."""
        self._told = True
        self._mark()

    def optimizer(self, who: object) -> None:
        """Mark a step of an optimizer; if there are several, the one with the most steps counts."""
        if self._step is None or self._told:
            return
        number = id(who)
        if number != self._leader:
            if self._leader and number != self._other:
                self._other = number
                return
            self._leader = number  # it has made two steps since the other optimizer's last one
        self._other = 0
        self._mark()

    def find(self) -> None:
        """Let the engine detect steps, because they run inside the framework and their end cannot be observed."""
        self._finding = True
        if self._find is not None:
            self._find()

    def begin_wait(self) -> bool:
        """Return True if the wait for data that begins now is to be measured.

        Waits in threads other than the one that makes steps, and waits within another wait, are not measured.
        """
        if self._step is None or self._waiting:
            return False
        here = threading.get_ident()
        if here != self._thread and (self._thread or threading.current_thread() is not threading.main_thread()):
            return False
        self._waiting = True
        return True

    def waited(self, ns: int) -> None:
        """End the measured wait, which took ``ns``."""
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
