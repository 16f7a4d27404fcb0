"""The error of a rank that waited for others in vain: who has not come, and who came and gave up before. Pure."""

from collections.abc import Sequence

from horovod.common.contract.reasons import Ending, explained
from horovod.common.wiring.link_errors import NotFormedError

_SHOWN = 32


def waited_in_vain(
    who: tuple[int, str], size: int, seconds: float, absent: Sequence[int], gave_up: Sequence[int], alone: str = ""
) -> NotFormedError:
    """The error of ``who`` (rank and host), of a job of ``size`` ranks. ``absent``: those that have not called
    hvd.init(); ``gave_up``: those that had, but had waited long enough when others came. ``alone``: why the process
    takes itself for one of several, where it may not be."""
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
    """The first ranks, for a message about many."""
    return ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")
