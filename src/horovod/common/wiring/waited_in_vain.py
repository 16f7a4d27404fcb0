"""Error of a rank that has waited too long for other ranks. Pure."""

from collections.abc import Sequence

from horovod.common.contract.reasons import Ending, explained
from horovod.common.wiring.link_errors import NotFormedError

_SHOWN = 32


def waited_in_vain(
    who: tuple[int, str], size: int, seconds: float, absent: Sequence[int], gave_up: Sequence[int], alone: str = ""
) -> NotFormedError:
    """Return the error, which names the ranks that have not come or have given up.

    Args:
        who: Rank and host of this process.
        size: Number of ranks of the job.
        seconds: Time waited.
        absent: Ranks that have not called ``hvd.init()``.
        gave_up: Ranks that had called it but timed out before others came.
        alone: Explanation of why the process assumes other ranks, which may be a mistake.
    """
    rank, host = who
    begin = f"init: rank {rank} (host {host}) waited {seconds:g} s"
    longer = "HOROVOD_START_TIMEOUT if they only need longer"
    if absent:
        text = f"{begin} for rank {listed(absent)} (of {size}) to call hvd.init(); "
        text += f"see the output of those ranks, and {longer}"
        text += f" (rank {listed(gave_up)} had come and given up before)" if gave_up else ""
        text += f". {alone}" if alone and len(absent) == size - 1 else ""
    else:
        text = (
            f"{begin}, but rank {listed(gave_up)} (of {size}) had called hvd.init() too early and given up before all "
            f"others came; see {longer}"
        )
    return explained(NotFormedError(text), Ending(rank, "absent", list(absent), seconds))


def listed(ranks: Sequence[int]) -> str:
    """Return the first of the ranks as text, for messages about many."""
    return ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")
