"""A driver on a cluster of Ray: a job of fixed members, then an elastic one that ends when it has become smaller. It
prints a line of JSON for each thing that is known."""

import json
import sys
import time

import ray

from horovod.ray import ElasticRayExecutor, RayExecutor


def ranks():
    import os

    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    total = float(hvd.allreduce(np.full(100_000, float(hvd.rank())), op=hvd.Sum)[0])
    return hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size(), os.uname().nodename, total


def train():
    import time

    import numpy as np

    import horovod.numpy as hvd
    from horovod.ray import ray_logger

    hvd.init()
    state = hvd.elastic.ObjectState(step=0, after=0)

    @hvd.elastic.run
    def loop(state):
        while state.after < 20:
            hvd.allreduce(np.ones(3))
            ray_logger.log({"step": state.step, "size": hvd.size(), "time": time.time()})
            state.step += 1
            state.after += hvd.size() < 4
            state.commit()
            time.sleep(0.1)

    loop(state)
    return hvd.rank(), hvd.size()


def say(**told):
    print(json.dumps(told), flush=True)


def connect(address, nodes):
    """Waits for so many nodes."""
    until = time.monotonic() + 90
    while True:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            break
        except (ConnectionError, RuntimeError):
            if time.monotonic() > until:
                raise
            time.sleep(1)
    while sum(one["Alive"] for one in ray.nodes()) < nodes:
        assert time.monotonic() < until
        time.sleep(0.2)


def main():
    connect(sys.argv[1], 2)
    fixed = RayExecutor(RayExecutor.create_settings(timeout_s=90), num_hosts=2, num_workers_per_host=2)
    fixed.start()
    say(fixed=fixed.run(ranks))
    fixed.shutdown()
    settings = ElasticRayExecutor.create_settings(min_num_proc=2, num_proc=4, max_num_proc=4, timeout_s=90)
    elastic = ElasticRayExecutor(settings)
    elastic.start()
    say(elastic=elastic.run(train, callbacks=[lambda told: say(**told)]))
    ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
