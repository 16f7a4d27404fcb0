"""Does a program count each optimizer step when it is done, so that it can go on from what it holds between two? Found
out by looking at what it counts. Pure.

A program whose function is called again begins where its counters are. That is right without going back to a commit
where they say exactly how many steps are done:

    for state.batch in range(state.batch, n):    # "batch" changes between any two steps, and not
        zero_grad, backward, step                #  between the beginning of the function and its first step

It is not where several steps make one unit that is counted, where counters are brought up to date only for a commit,
where a step is counted before it is taken, or where parameters are moved for a second backward pass and moved back.
"""

from collections.abc import Hashable


class StepByStep:
    """Told of the beginning and of each step: ``counted``, the program's counters as they are then; ``touched``,
    anything that changes with reductions of gradients and with changes of parameters."""

    def __init__(self) -> None:
        self._each = True  # between any two steps so far, counters have changed
        self._seen = False  # and that has been seen
        self._after = True  # the first step since the beginning came before it was counted
        self.begins = True
        """No step has been taken since the function has begun."""
        self._last: tuple[Hashable, Hashable] = (None, None)

    def go_on(self, counted: Hashable, touched: Hashable) -> None:
        """The function is called, or is where it could be called."""
        self.begins = self._after = True
        self._last = counted, touched

    def stepped(self, counted: Hashable, touched: Hashable) -> None:
        """The optimizer has changed the parameters."""
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
        """Has the program, which is about to reduce gradients, counted the step before and not begun to change anything
        for the next one?"""
        if touched != self._last[1]:
            return False
        if self.begins:
            return counted == self._last[0]
        return self._each and self._seen and self._after and counted != self._last[0]
