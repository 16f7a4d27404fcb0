"""Process functions of the NumPy frontend: init, shutdown, rank and size."""

from horovod._arrays import pending
from horovod.common.basics import HorovodBasics

basics = HorovodBasics("numpy")

init = basics.init
rank = basics.rank
size = basics.size


def shutdown() -> None:
    """Leave the job, as described in ``horovod.common.basics``.

    Handles of unfinished operations then raise an error.
    """
    basics.shutdown()
    pending.forget()
