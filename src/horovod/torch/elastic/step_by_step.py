"""Detection of programs that count each optimizer step right after taking it.

Such a program can resume from its state between two steps: when its function is called again, it begins where its
counters are. Resuming without returning to a commit is correct if the counters tell exactly how many steps are done::

    for state.batch in range(state.batch, n):    # "batch" changes between any two steps, and not
        zero_grad, backward, step                #  between the beginning of the function and its first step

It is incorrect if the program counts several steps as one, updates its counters only for a commit, counts a step before
taking it, or changes parameters for a second backward pass and changes them back.
"""

from collections.abc import Hashable


class StepByStep:
    """Observer of the calls of the training function and of each optimizer step.

    ``counted`` is the current value of the program's counters. ``touched`` is any value that changes with each
    reduction of gradients and each change of parameters.
    """

    def __init__(self) -> None:
        # True as long as the counters have changed between each two successive steps.
        self._each = True
        # True if the counters have changed between two steps at least once.
        self._seen = False
        # True if the first step after the function began was taken before it was counted.
        self._after = True
        self.begins = True
        """True until the first step after the function began."""
        self._last: tuple[Hashable, Hashable] = (None, None)

    def go_on(self, counted: Hashable, touched: Hashable) -> None:
        """Record that the function is being called, or is at a point where it could be called again."""
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
        """Return True if the program has counted its last step and changed nothing since.

        Called when the program is about to reduce gradients.
        """
        if touched != self._last[1]:
            return False
        if self.begins:
            return counted == self._last[0]
        return self._each and self._seen and self._after and counted != self._last[0]
