"""Measure how much time data workers save, by timing a pass over a slow dataset with zero, one and two of them.

    python benchmarks/data_service.py [--elements 200] [--slow 0.02] [--step 0.005] [--workers 0 1 2]

Preprocessing an element takes ``--slow`` seconds, and a training step ``--step`` seconds. Both only sleep, so results
do not depend on the number of cores. Without data workers, tf.data prefetches in the training process.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600


def train(elements: int, slow: float, step: float, configfile: str | None) -> float:
    """Train for two passes. Return the duration in seconds of the second pass, when all data workers are running."""
    import tensorflow as tf

    # Use a private TensorFlow op, because no public op sleeps.
    from tensorflow.python.data.experimental.ops import testing

    from horovod.tensorflow.data.compute_service import TfDataServiceConfig

    dataset = tf.data.Dataset.range(elements).apply(testing.sleep(int(slow * 1e6)))
    if configfile is not None:
        config = TfDataServiceConfig.read(configfile, wait_for_file_creation=True)
        dataset = dataset.send_to_data_service(config, 0, 1, reuse_dataset=True)
    else:
        dataset = dataset.prefetch(2)
    for _ in range(2):
        begin, seen = 0.0, 0
        for _ in dataset:
            begin = begin or time.perf_counter()
            time.sleep(step)
            seen += 1
        seconds = time.perf_counter() - begin
    if seen != elements:
        raise RuntimeError(f"{seen} elements came, of {elements}")
    if configfile is not None:
        with config.compute_client() as client:
            client.shutdown()
    return seconds


def measure(workers: int, options: list[str], folder: str) -> float:
    """Run a training process with the given number of data workers, and return the measured time in seconds."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    environ = {**os.environ, **quiet}
    configfile = os.path.join(folder, f"compute-{workers}.json")
    command = [sys.executable, __file__, *options, "--train", configfile if workers else ""]
    side = None
    if workers:
        compute = [sys.executable, "-m", "horovod.tensorflow.data.compute_worker", configfile]
        side = subprocess.Popen([sys.executable, "-m", "horovod.runner", "-np", str(workers), *compute], env=environ)
    try:
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS)
        if side is not None:
            side.wait(SECONDS)
    finally:
        if side is not None:
            side.terminate()
            side.wait()
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elements", type=int, default=200)
    parser.add_argument("--slow", type=float, default=0.02, help="seconds of preprocessing an element; default: 0.02")
    parser.add_argument("--step", type=float, default=0.005, help="seconds of a step; default: 0.005")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="how many; default: 0 1 2")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train is not None:
        print(train(args.elements, args.slow, args.step, args.train or None))
        return
    options = ["--elements", str(args.elements), "--slow", str(args.slow), "--step", str(args.step)]
    with tempfile.TemporaryDirectory() as folder:
        for workers in args.workers:
            print(f"{workers} data workers: {measure(workers, options, folder):.2f} s", flush=True)


if __name__ == "__main__":
    main()
