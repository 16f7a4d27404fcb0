"""Detection of programs that count each optimizer step right after taking it. Pure.

Such a program can resume from what it holds between two steps. When its function is called again, it begins where its
counters are. Resuming without going back to a commit is correct if the counters say exactly how many steps are done::

    for state.batch in range(state.batch, n):    # "batch" changes between any two steps, and not
        zero_grad, backward, step                #  between the beginning of the function and its first step

It is incorrect if several steps form one counted unit, if counters are updated only for a commit, if a step is counted
before it is taken, or if parameters are moved for a second backward pass and moved back.
"""

from collections.abc import Hashable


class StepByStep:
    """Observer of the beginning of the function and of each step.

    ``counted`` is the current value of the program's counters. ``touched`` is any value that changes with each
    reduction of gradients and each change of parameters.
    """

    def __init__(self) -> None:
        # False if the counters stayed the same between two steps.
        self._each = True
        # True if the counters were seen to change between two steps.
        self._seen = False
        # True if the first step since the beginning was taken before it was counted.
        self._after = True
        self.begins = True
        """True until the first step after the function has begun."""
        self._last: tuple[Hashable, Hashable] = (None, None)

    def go_on(self, counted: Hashable, touched: Hashable) -> None:
        """Record that the function is called, or is at a point where it could be called."""
        self.begins = self._after = True
        self._last = counted, touched

    def stepped(self, counted: Hashable, touched: Hashable) -> None:
        """Record that the optimizer has changed the parameters."""
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
        """Return True if the program has counted its last step and not begun to change anything for the next one.

        Called when the program is about to reduce gradients.
        """
        if touched != self._last[1]:
            return False
        if self.begins:
            return counted == self._last[0]
        return self._each and self._seen and self._after and counted != self._last[0]
