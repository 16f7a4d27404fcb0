"""Measure the time that Horovod adds to Ray, from start to first allreduce, and recovery from a lost raylet.

    python benchmarks/ray_start.py [--runs 5] [--workers 4] [--kills 5]

Clusters have three raylets on this machine. *Start* alternates two programs with one CPU per worker. The first uses
only Ray: a placement group, actors in it, and a call in each that imports NumPy. The second is a RayExecutor with a
function that ends with its first allreduce. The difference is Horovod's part. *Kill* kills the raylet of two of four
elastic workers (SIGKILL). It reports the seconds from the kill to the last step of all four, and to the first step of
the remaining ones.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
from typing import Any

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.ray import ElasticRayExecutor, RayExecutor

# Seconds to wait while Ray prestarts processes for later workers.
REST = 4.0


class Plain:
    """Actor used to measure Ray without Horovod."""

    def call(self) -> int:
        import numpy as np

        return int(np.ones(4).sum())


def allreduce() -> float:
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    return float(hvd.allreduce(np.ones(4), op=hvd.Sum)[0])


def by_ray(workers: int) -> float:
    start = time.monotonic()
    group = placement_group([{"CPU": 1}] * workers, strategy="PACK")
    ray.get(group.ready())
    actors = [
        ray.remote(Plain)
        .options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group, number))
        .remote()
        for number in range(workers)
    ]
    ray.get([actor.call.remote() for actor in actors])
    seconds = time.monotonic() - start
    for actor in actors:
        ray.kill(actor)
    remove_placement_group(group)
    return seconds


def by_horovod(workers: int) -> float:
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=120), num_workers=workers)
    start = time.monotonic()
    executor.start()
    results = executor.run(allreduce)
    seconds = time.monotonic() - start
    executor.shutdown()
    assert results == [float(workers)] * workers
    return seconds


def cluster(workers: int) -> tuple[Cluster, Any]:
    """Start a cluster of three raylets, connect to it, and return it with its last raylet.

    The last raylet has half of the CPUs.
    """
    first, last = 1, workers // 2
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": first, "include_dashboard": False})
    cluster.add_node(num_cpus=workers - first - last)
    node = cluster.add_node(num_cpus=last)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    return cluster, node


def start(runs: int, workers: int) -> None:
    bed, _ = cluster(workers)
    rays, horovod_times, loads = [], [], []
    # Warm up, so that files are cached when the measurement starts.
    by_ray(workers), by_horovod(workers)
    for _ in range(runs):
        for measure, values in ((by_ray, rays), (by_horovod, horovod_times)):
            time.sleep(REST)
            values.append(measure(workers))
            loads.append(os.getloadavg()[0])
    ray.shutdown()
    bed.shutdown()
    beyond = [horovod - its for horovod, its in zip(horovod_times, rays, strict=True)]
    print(f"start, {workers} workers, s (median of {runs}, least to most), at a load of {_range(loads)}:")
    for name, values in (("Ray alone", rays), ("to the first allreduce", horovod_times), ("beyond Ray's own", beyond)):
        print(f"  {name:24} {statistics.median(values):6.2f}  {min(values):6.2f} to {max(values):6.2f}")


def steps() -> None:
    import numpy as np

    import horovod.numpy as hvd
    from horovod.ray import ray_logger

    hvd.init()
    state = hvd.elastic.ObjectState(step=0, after=0)

    @hvd.elastic.run
    def loop(state: Any) -> None:
        while hvd.size() == 4 or state.after < 20:
            hvd.allreduce(np.ones(4))
            ray_logger.log({"size": hvd.size(), "time": time.time()})
            time.sleep(0.02)
            state.step += 1
            state.after += hvd.size() < 4
            state.commit()

    loop(state)


def kill_one() -> tuple[float, float]:
    bed, victim = cluster(4)
    try:
        losses: list[dict[str, float]] = []
        settings = ElasticRayExecutor.create_settings(min_num_proc=2, num_proc=4, elastic_timeout=60, verbose=0)
        executor = ElasticRayExecutor(settings)
        executor.start()
        training = threading.Thread(target=executor.run, args=[steps, [losses.append]])
        training.start()
        while len(losses) < 20:
            time.sleep(0.05)
        pid = victim.all_processes["raylet"][0].process.pid
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        training.join(120)
        last = max(one["time"] for one in losses if one["size"] == 4)
        again = min(one["time"] for one in losses if one["size"] == 2)
        return last - killed, again - killed
    finally:
        ray.shutdown()
        bed.shutdown()


def kill(kills: int) -> None:
    found, loads = [], []
    for _ in range(kills):
        found.append(kill_one())
        loads.append(os.getloadavg()[0])
    print(f"a raylet killed, s after it (median of {kills}, least to most), at a load of {_range(loads)}:")
    for name, values in zip(("last step of all", "first step of those left"), zip(*found, strict=True), strict=True):
        print(f"  {name:24} {statistics.median(values):6.2f}  {min(values):6.2f} to {max(values):6.2f}")


def _range(loads: list[float]) -> str:
    return f"{min(loads):.0f} to {max(loads):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5, help="starts (default %(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="(default %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="(default %(default)s)")
    args = parser.parse_args()
    if args.workers < 4:
        parser.error(
            f"--workers must be an integer of at least 4, for three nodes with workers on each, got {args.workers}"
        )
    if args.runs:
        start(args.runs, args.workers)
    if args.kills:
        kill(args.kills)


if __name__ == "__main__":
    main()
