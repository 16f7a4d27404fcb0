"""Measure Horovod's TensorFlow frontend and tf.distribute.MultiWorkerMirroredStrategy in one run.

    python benchmarks/with_tensorflow.py [--rounds 4] [--kinds resnet mlp] [--out runs/tensorflow.jsonl]

Operations of 1024 floats, the gradients of ResNet-50 and steps of Keras' fit; see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from cases import Case
from jobs import Job
from run import Run
from tensorflow_cases import PARTS, TENSORFLOW_COLUMNS, tensorflow_cases


class TensorFlowRun(Run):
    """Benchmark of calls that run several operations or steps each.

    A sample is the time of a single operation or step.
    """

    table = TENSORFLOW_COLUMNS

    def one(self, np: int, job: Job, column: str, case: Case, mode: str, turn: int, state: dict[str, float]) -> Any:
        return super().one(np, job, column, case, mode, turn, state, PARTS[case.kind])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure Horovod on TensorFlow against MultiWorkerMirroredStrategy.")
    parser.add_argument("--np", type=int, default=2, help="processes (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of measurements (default %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=PARTS, default=list(PARTS), help="cases (default: all)")
    parser.add_argument("--columns", nargs="+", choices=TENSORFLOW_COLUMNS, default=list(TENSORFLOW_COLUMNS))
    parser.add_argument("--no-pin", action="store_true", help="leave it to the system which core runs which thread")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="seconds for one measurement (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/tensorflow.jsonl"), help="(default %(default)s)")
    args = parser.parse_args()
    args.mpi_prefix = ""
    for name, value in (("--np", args.np), ("--rounds", args.rounds)):
        if value < 1:
            parser.error(f"{name}: {value} is below 1")
    return args


def main() -> None:
    args = parse_args()
    # Exit normally, so that cleanup handlers stop the jobs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w") as out:
        run = TensorFlowRun(args, out)
        print(run.measure(args.np, [case for case in tensorflow_cases() if case.kind in args.kinds]) + "\n")
    print(run.machine())


if __name__ == "__main__":
    main()
