"""Measure what Horovod adds to Spark: the start of a job, and recovery from the loss of an executor.

    python benchmarks/spark.py [--ranks 4] [--repeats 5] [--master local-cluster[2,2,1024]]

Start: time from the call of `horovod.spark.run` to the end of the first allreduce on the last rank, and time of an
empty barrier stage of as many tasks, which is Spark's part. Executors have run tasks before.

Loss: an executor of an elastic job is killed (SIGKILL). Times: until the launcher reports the loss, from there to the
first step of the remaining ranks, and to the first step of as many ranks as before, which is mostly Spark's time to
start an executor.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.spark.executors import kill_executor_of, wait_for  # noqa: E402

SECONDS = 180


def first_allreduce() -> float:
    """Run an allreduce on this rank, and return its completion time as a Unix timestamp."""
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    hvd.allreduce(np.ones(1), op=hvd.Sum)
    return time.time()


def train(folder: str, ranks: int) -> None:
    """Run steps of 20 ms until a lost rank has been replaced, and write a file at each change of the job's size."""
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    state = hvd.elastic.ObjectState(sizes=[])

    @hvd.elastic.run
    def run(state: Any) -> None:
        while True:
            size = int(hvd.allreduce(np.ones(1), op=hvd.Sum, name="size")[0])
            if not state.sizes or state.sizes[-1] != size:
                state.sizes.append(size)
                with open(f"{folder}/{hvd.rank()}.{len(state.sizes)}", "w") as file:
                    json.dump([os.getpid(), size, time.time()], file)
            if size == ranks and len(state.sizes) >= 3:
                return
            time.sleep(0.02)
            state.commit()

    run(state)


class Listener:
    """Output stream that records the time at which a line with a given text is written."""

    def __init__(self, text: str) -> None:
        self.text, self.at, self.written = text, 0.0, ""

    def write(self, text: str) -> None:
        self.written += text
        if not self.at and self.text in self.written:
            self.at = time.time()

    def flush(self) -> None:
        pass


def measure_start(context: Any, ranks: int) -> dict[str, float]:
    import horovod.spark

    begin = time.time()
    context.parallelize(range(ranks), ranks).barrier().mapPartitions(lambda _: [time.time()]).collect()
    own = time.time() - begin
    begin = time.time()
    done = max(horovod.spark.run(first_allreduce, num_proc=ranks))
    return {
        "an empty barrier stage": own,
        "to the first allreduce": done - begin,
        "beyond Spark's own": done - begin - own,
    }


def measure_loss(ranks: int) -> dict[str, float]:
    import horovod.spark

    lost = Listener("is lost")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times: dict[str, float] = {}

        def step(number: int) -> Callable[[], list[Any]]:
            """Return a function that reads rank 0's file for the job's start (1) or its restart (2)."""
            return lambda: _read(folder / f"0.{number}")

        def kill() -> None:
            wait_for(step(1), SECONDS)
            time.sleep(1)
            times["killed"] = kill_executor_of(json.loads((folder / f"{ranks - 1}.1").read_text())[0])
            times["step"] = wait_for(step(2), SECONDS)[2]

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        horovod.spark.run_elastic(train, (name, ranks), num_proc=ranks, min_num_proc=1, stderr=lost)
        killer.join()
        found = [_read(file) for file in folder.iterdir()]
        whole = max(at for _, size, at in found if size == ranks)
    return {
        "killed to noticed": lost.at - times["killed"],
        "noticed to the next step": times["step"] - lost.at,
        "killed to as many ranks as before": whole - times["killed"],
    }


def _read(file: Path) -> list[Any]:
    try:
        return list(json.loads(file.read_text()))
    except (OSError, ValueError):
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--master", default="local-cluster[2,2,1024]")
    options = parser.parse_args()
    from pyspark import SparkConf, SparkContext

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf = SparkConf().setMaster(options.master).setAppName("benchmark")
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    context = SparkContext(conf=conf)
    context.setLogLevel("OFF")
    wait_for(lambda: context._jsc.sc().statusTracker().getExecutorInfos(), SECONDS)
    # Warm up, so that the executors have already started their Python workers.
    measure_start(context, options.ranks)
    times: dict[str, list[float]] = {}
    for _ in range(options.repeats):
        for name, seconds in measure_start(context, options.ranks).items():
            times.setdefault(name, []).append(seconds)
    for _ in range(options.repeats):
        for name, seconds in measure_loss(options.ranks).items():
            times.setdefault(name, []).append(seconds)
    context.stop()
    print(f"{options.ranks} ranks, {options.master}, {options.repeats} times; load {os.getloadavg()[0]:.1f}; seconds")
    print(f"{'':36}median   least   most")
    for name, values in times.items():
        print(f"{name:36}{statistics.median(values):6.2f}  {min(values):6.2f} {max(values):6.2f}")


if __name__ == "__main__":
    main()
