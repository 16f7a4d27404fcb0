"""Step boundaries, which ``hvd.step()`` or optimizers mark, and the time spent waiting for data.

Marking a step costs about a microsecond in a job, and nothing otherwise. ``telemetry/account.py`` uses the marks.
"""

import threading
from collections.abc import Callable


class Marks:
    """Decides what counts as a training step in this process, and passes the end of each step to the engine.

    If the program calls ``tell``, each call ends a step, and nothing else does. Otherwise, the steps of one optimizer
    count. If there is no optimizer either, the engine can detect steps itself, which ``find`` enables.
    """

    __slots__ = (
        "_explicit",
        "_find",
        "_finding",
        "_leader",
        "_other",
        "_step",
        "_thread",
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
        """Function that is called after each mark that counts, in jobs that start after it was set."""
        self.kept: Callable[[], None] | None = None
        """Function that is called when an elastic state is committed."""
        self.back: Callable[[int, int | None], None] | None = None
        """Function that is called on all ranks when training continues from a state after a failure.

        Arguments: the rank whose state is restored, and the number of steps to repeat. None means those since the last
        commit.
        """
        self._forget()

    def _forget(self) -> None:
        self._explicit = False
        self._leader = self._other = 0
        self._thread = 0
        # Nanoseconds spent waiting for data since the last mark.
        self._waits = 0
        self._waiting = False

    def open(self, step: Callable[[int], None], find: Callable[[], None]) -> None:
        """Start marking the steps of a job.

        Args:
            step: Function called at each mark with the ns spent waiting for data since the previous mark.
            find: Function that tells the engine to detect steps itself.
        """
        self._forget()
        beside = self.beside
        self._step, self._find = step, find
        if beside is not None:
            self.also(beside)
        if self._finding:
            find()

    def also(self, call: Callable[[], None]) -> None:
        """Add a function that is called at the end of each step of the current job."""
        step = self._step
        if step is not None:

            def both(waits: int) -> None:
                step(waits)
                call()

            self._step = both

    def close(self) -> None:
        """Stop marking steps because the job has ended."""
        self._step = self._find = None

    def tell(self) -> None:
        """Mark the end of a step. The program calls this as ``hvd.step()``."""
        self._explicit = True
        self._mark()

    def optimizer(self, who: object) -> None:
        """Mark a step of an optimizer. If there are several optimizers, only the one that steps most often counts."""
        if self._step is None or self._explicit:
            return
        number = id(who)
        if number != self._leader:
            if self._leader and number != self._other:
                self._other = number
                return
            self._leader = number  # this optimizer made two steps in a row, so its steps count from now on
        self._other = 0
        self._mark()

    def find(self) -> None:
        """Let the engine detect steps that run inside the framework, where Python cannot observe them."""
        self._finding = True
        if self._find is not None:
            self._find()

    def begin_wait(self) -> bool:
        """Begin a wait for data. Return True if the wait must be measured.

        Only waits in the training thread are measured. Waits within another wait are not.
        """
        if self._step is None or self._waiting:
            return False
        here = threading.get_ident()
        if here != self._thread and (self._thread or threading.current_thread() is not threading.main_thread()):
            return False
        self._waiting = True
        return True

    def waited(self, ns: int) -> None:
        """Record the end of the measured wait, which took ``ns`` nanoseconds."""
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
