"""This process's place in the job, for this face."""

from horovod._arrays import pending
from horovod.common.basics import HorovodBasics

basics = HorovodBasics("numpy")

init = basics.init
rank = basics.rank
size = basics.size


def shutdown() -> None:
    """Leaves the job, see ``horovod.common.basics``; handles of operations that are not done tell so."""
    basics.shutdown()
    pending.forget()
