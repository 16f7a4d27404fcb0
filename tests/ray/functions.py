"""Functions that are called in workers."""

import os


def ranks(extra=0.0):
    """Return (rank, size, local rank, cross size, a sum over ranks)."""
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    total = float(hvd.allreduce(np.full(3, float(hvd.rank())), op=hvd.Sum)[0])
    return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size(), total + extra


def in_new_job():
    """Return the result of ``ranks`` in a new job."""
    import horovod.numpy as hvd

    hvd.shutdown()
    return ranks()


def fails(rank):
    """One rank raises while the others wait for it."""
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    if hvd.rank() == rank:
        raise ValueError("the learning rate is negative")
    hvd.allreduce(np.ones(1))


def dies(rank):
    """One rank is killed while the others wait for it."""
    import numpy as np

    import horovod.numpy as hvd

    hvd.shutdown()
    hvd.init()
    if hvd.rank() == rank:
        os.kill(os.getpid(), 9)
    hvd.allreduce(np.ones(1))


def stops(rank):
    """One rank is stopped while the others wait for it."""
    import signal

    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    hvd.allreduce(np.ones(1))
    if hvd.rank() == rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    hvd.allreduce(np.ones(1))


def logs(count, rest=0.0):
    """Each rank logs, and returns some seconds later."""
    import time

    import horovod.numpy as hvd
    from horovod.ray import ray_logger

    hvd.init()
    for step in range(count):
        ray_logger.log({"step": step, "rank": hvd.rank()})
    time.sleep(rest)
    return hvd.rank()


class Executable:
    """Holds a number that grows."""

    def __init__(self, start, by=1):
        import horovod.numpy as hvd

        hvd.init()
        self.value, self.by = start + hvd.rank(), by

    def grow(self):
        self.value += self.by
        return self.value


def trains(steps, full, fall=None, pause=0.05, stopped=None):
    """Run an elastic program for at least so many steps, until it has ``full`` ranks; return (rank, size).

    ``fall``, ``stopped``: the number of a worker that is killed, or stopped, at step 5.
    """
    import signal
    import time

    import numpy as np

    import horovod.numpy as hvd
    from horovod.ray import ray_logger

    hvd.init()
    state = hvd.elastic.ObjectState(step=0)

    @hvd.elastic.run
    def loop(state):
        while state.step < steps or hvd.size() < full:
            if state.step == 5 and os.environ["HOROVOD_WORKER"] == str(fall):
                os.kill(os.getpid(), 9)
            if state.step == 5 and os.environ["HOROVOD_WORKER"] == str(stopped):
                os.kill(os.getpid(), signal.SIGSTOP)
            size = int(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
            ray_logger.log({"step": state.step, "size": size, "time": time.time()})
            state.step += 1
            state.commit()
            time.sleep(pause)

    loop(state)
    return hvd.rank(), hvd.size()
