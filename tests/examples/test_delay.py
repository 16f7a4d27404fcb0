"""benchmarks/delay: that its hosts exist, that a message takes the delay, and that nothing stays behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.examples.benchmark_modules import FOLDER, load

DELAY_US = 3000  # far above what a busy machine adds


def reason_against() -> str:
    return str(load("delay/hosts").missing())


@pytest.mark.skipif(bool(reason_against()), reason=f"no hosts here: {reason_against()}")
def test_a_step_takes_one_delay_at_least_and_runs_by_schedule() -> None:
    command = [
        sys.executable,
        str(FOLDER / "delay" / "run.py"),
        "--delay",
        str(DELAY_US),
        "--hosts",
        "2",
        "--sizes",
        "4",
    ]
    done = subprocess.run([*command, "--rounds", "1"], capture_output=True, text=True, timeout=100)
    if "cannot make a network namespace" in done.stderr or "delay1: Operation not permitted" in done.stderr:
        pytest.skip("network namespaces or TUN devices are not allowed here")
    assert done.returncode == 0, done.stderr
    one = re.search(r"one message: (\d+) us", done.stdout)
    ours = re.search(r"ours +2 hosts +4 B: +(\d+) us .* mean +(\d+) us", done.stdout)
    assert one is not None, done.stdout
    assert ours is not None, done.stdout
    # Lower bounds only: no machine is faster than the delay. A rank may find the other's message there, but then the
    # other waited for longer, so it is the mean that counts.
    assert int(one[1]) >= DELAY_US
    assert int(ours[2]) >= DELAY_US * 0.9
    assert "before a schedule" not in done.stdout
    assert not [name for name in os.listdir("/sys/class/net") if name.startswith("delay")]
