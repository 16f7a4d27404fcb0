"""Measure the cost of observing a job, with and without each observer in the same two processes.

    horovodrun -np 2 python benchmarks/price.py [--rounds 30] [--cases many char_gpt resnet18]

A comparison consists of four blocks of steps: off, on, on, off. Its result is the ratio of the median steps of the
middle and the outer blocks, which a steady change of the machine's speed does not affect. Comparisons alternate. The
table has the median of these ratios and its 95 % confidence interval. "nothing" compares off with off and shows the
machine's noise. The table also has the CPU time of the observers' threads, which the median step does not show if a
core is free for them. benchmarks/README.md explains the tables.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from statistics import median

from cases import KIB, Case
from overheads import observers_cpu
from peers.ours import Peer

import horovod.torch as hvd
from horovod.common.frontends import state
from horovod.common.training_loop.steps import marks

Step = Callable[[], None]
CASES = {
    "many": (Case("many", "200 x 4 KiB", 200 * 4 * KIB, 1, 1), "async"),
    "char_gpt": (Case("char_gpt", "char_gpt, 1 a rank", 1, 1, 1), "step"),
    "resnet18": (Case("resnet18", "ResNet-18, 1 a rank", 1, 1, 1), "step"),
}
RECORDER, STEPS, HANGS, TIMELINE = "flight recorder", "step accounting", "hang explainer", "timeline"
DEFAULTS = frozenset({RECORDER, STEPS, HANGS})
# Comparisons of two sets of enabled observers, in blocks of steps: A, B, B, A. Each has the observers of A, the
# observers of B, and the tolerated relative difference in step time.
COMPARISONS: dict[str, tuple[frozenset[str], frozenset[str], float]] = {
    "nothing": (frozenset(), frozenset(), 0.01),
    RECORDER: (frozenset(), frozenset({RECORDER}), 0.01),
    STEPS: (frozenset(), frozenset({STEPS}), 0.01),
    HANGS: (frozenset(), frozenset({HANGS}), 0.01),
    "all that is on by default": (frozenset(), DEFAULTS, 0.01),
    "a timeline beside it": (DEFAULTS, DEFAULTS | {TIMELINE}, 0.03),
}
OBSERVERS = {RECORDER: ("recorder",), STEPS: ("steps", "mailbox"), HANGS: ("hangs", "mailbox")}
WALK = (False, True, True, False)


class Switches:
    """Switches that turn the monitoring features (observers) of this rank on and off."""

    def __init__(self, folder: str) -> None:
        self._file = os.path.join(folder, "timeline.json")
        self._on = DEFAULTS

    def turn(self, on: frozenset[str]) -> None:
        engine = state.engine
        assert engine is not None
        listening = {name for part in on & DEFAULTS for name in OBSERVERS[part]}
        for name in sorted({name for names in OBSERVERS.values() for name in names}):
            engine.listen(name, name in listening)
        if STEPS in on:
            marks.open(engine.step, engine.find_steps)
        else:
            marks.close()
        if TIMELINE in on and TIMELINE not in self._on:
            hvd.start_timeline(self._file)
        elif TIMELINE in self._on and TIMELINE not in on:
            hvd.stop_timeline()
        self._on = on


def run(step: Step, steps: int) -> list[float]:
    """Run steps and return their durations in seconds."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        hvd.step()
        times.append(time.perf_counter() - start)
    return times


def walk(switches: Switches, name: str, step: Step, settle: int, steps: int) -> list[float]:
    """Run one comparison, which consists of four blocks of steps, and return each block's median step time in seconds.

    All ranks enable or disable observers at the same step, because steps contain collectives.
    """
    outer, inner, _ = COMPARISONS[name]
    medians = []
    for i, on in enumerate(WALK):
        if i == 0 or on != WALK[i - 1]:
            switches.turn(inner if on else outer)
            run(step, settle)
        medians.append(median(run(step, steps)))
    return medians


def background(switches: Switches, name: str, step: Step, steps: int) -> float:
    """Return the CPU seconds per step that the observers' threads use while they are enabled.

    Use enough steps for several seconds, because step accounting runs only once per second.
    """
    switches.turn(COMPARISONS[name][1])
    run(step, max(1, steps // 4))
    used = observers_cpu()
    run(step, steps)
    return (observers_cpu() - used) / steps


def ratio(figures: Sequence[float]) -> float:
    """Return the step time of a comparison's two middle blocks, relative to that of its two outer blocks."""
    return (figures[1] + figures[2]) / (figures[0] + figures[3])


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Return the median of the values, with a confidence interval that is valid for any distribution.

    The number of values below the true median has a binomial distribution. With few values, the interval spans all of
    them.
    """
    ordered = sorted(values)
    n = len(ordered)
    # Number of values to drop at each end of the sorted list, and the probability that the true median lies outside the
    # range of the remaining values.
    left_out, outside = 0, 2 / 2**n
    while left_out < (n - 1) // 2:
        outside += 2 * math.comb(n, left_out + 1) / 2**n
        if outside > 1 - confidence:
            break
        left_out += 1
    return median(ordered), ordered[left_out], ordered[n - 1 - left_out]


def measure(case: str, options: argparse.Namespace, peer: Peer, switches: Switches) -> dict[str, list[list[float]]]:
    """Measure all comparisons on this rank.

    Returns:
        For each comparison, a list of lists. There is one inner list per round, with the median step time of each of
        the round's four blocks (see `walk`). The last inner list has a single element: the CPU time per step of the
        observers' threads (see `background`). All times are in seconds.
    """
    what, mode = CASES[case]
    step = peer.prepare(what, mode)
    # Warm up until the engine has learned its schedule of operations and follows it.
    run(step, 60)
    usual = hvd.broadcast_object(median(run(step, 10)), root_rank=0)
    run(step, 60)
    steps = max(3, round(options.block / usual))
    names = list(COMPARISONS)
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    if options.realtime:
        go_first(os.SCHED_RR)
    for i in range(options.rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            found[name].append(walk(switches, name, step, max(2, steps // 10), steps))
    if options.realtime:
        go_first(os.SCHED_OTHER)
    for name in names:
        found[name].append([background(switches, name, step, max(1, round(options.background / usual)))])
    switches.turn(DEFAULTS)
    return found


def combined(ranks: Sequence[dict[str, list[list[float]]]]) -> dict[str, dict[str, list[float]]]:
    """Combine the results of all ranks.

    Returns:
        For each comparison, the ratios of step times (see `ratio`), the step times in seconds without the observers,
        and the CPU time of the observers' threads as a share of the step time. All values are averages across ranks,
        because ranks run each step together.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for name in ranks[0]:
        *walks, (threads,) = (
            [sum(figures) / len(ranks) for figures in zip(*walk, strict=True)]
            for walk in zip(*(rank[name] for rank in ranks), strict=True)
        )
        seconds = [(w[0] + w[3]) / 2 for w in walks]
        share = threads / median(seconds)
        found[name] = {"ratios": [ratio(w) for w in walks], "seconds": seconds, "threads": [share]}
    return found


def report(label: str, found: dict[str, dict[str, list[float]]]) -> list[str]:
    """Return a Markdown table of the results, as lines."""
    usual = median([s for figures in found.values() for s in figures["seconds"]])
    lines = [f"| {label}: {1e3 * usual:.2f} ms | a step takes more | its threads | limit |", "|---|---|---|---|"]
    for name, figures in found.items():
        limit = COMPARISONS[name][2]
        middle, low, high = (100 * (value - 1) for value in interval(figures["ratios"]))
        result = "met" if high < 100 * limit else "exceeded" if low > 100 * limit else "within the noise"
        text = f"{middle:+.2f} % ({low:+.2f} to {high:+.2f})"
        lines.append(f"| {name} | {text} | {100 * figures['threads'][0]:.2f} % | {100 * limit:g} %: {result} |")
    return lines


def go_first(policy: int) -> None:
    """Set the scheduling policy, such as SCHED_RR, of this thread and the engine's threads.

    The observers' threads keep their policy.
    """
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm:
            if int(task) == os.getpid() or comm.read().strip() == "hvd-engine":
                first = os.sched_param(1 if policy == os.SCHED_RR else 0)
                os.sched_setscheduler(int(task), policy | os.SCHED_RESET_ON_FORK, first)


def keep_memory() -> None:
    """Make malloc keep freed memory, so that each step uses the same memory.

    The duration of a ResNet-18 block varies by 25 % with the physical pages that it uses.
    """
    libc = ctypes.CDLL(None)
    # Set M_TRIM_THRESHOLD (-1), and set M_MMAP_THRESHOLD (-3) to its maximum.
    for parameter, value in ((-1, 1 << 30), (-3, 1 << 25)):
        libc.mallopt(parameter, value)


def main() -> None:
    parser = argparse.ArgumentParser(description="What observing a job costs.")
    parser.add_argument("--rounds", type=int, default=30, help="walks of each comparison (default %(default)s)")
    parser.add_argument("--block", type=float, default=0.2, help="seconds of a block, about (default %(default)s)")
    parser.add_argument("--background", type=float, default=4.0, help="seconds for threads (default %(default)s)")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--no-pin", action="store_true", help="do not pin each rank to a separate core")
    parser.add_argument("--realtime", action="store_true", help="run ranks before other programs (root)")
    args = parser.parse_args()
    # Set the scheduling policy before any thread starts.
    if not args.no_pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ.get("HOROVOD_LOCAL_RANK", "0")) % len(cores)]})
    keep_memory()
    # Allow the benchmark to start and stop timelines while the job runs.
    os.environ.setdefault("HOROVOD_TIMELINE", "DYNAMIC")
    peer = Peer()
    with tempfile.TemporaryDirectory() as folder:
        switches = Switches(folder)
        for case in args.cases:
            before = os.getloadavg()[0]
            from_all = hvd.allgather_object(measure(case, args, peer, switches))
            if hvd.rank() == 0:
                found = combined(from_all)
                loads = (
                    f"{args.rounds} walks each; load {before:.1f} to {os.getloadavg()[0]:.1f}, 2 of it the benchmark's"
                )
                print("\n".join([*report(CASES[case][0].label, found), "", loads, ""]), flush=True)


if __name__ == "__main__":
    main()
