"""Describe a process that does not answer: whether its threads run or wait, and where, including native frames."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from horovod import _core

LOOK_SECONDS = 0.5  # between two samples of the threads' CPU time
GDB_SECONDS = 60.0


def describe(pid: int, native: bool = False) -> str:
    """Return a line for each thread with its total and recent CPU time, then the host's load.

    ``native``: add the stacks of all threads from gdb if it is installed, which takes seconds.
    """
    before = _threads(pid)
    time.sleep(LOOK_SECONDS)
    lines = [f"--- threads of {pid}: CPU seconds in all, in the last {LOOK_SECONDS:g} s, where the kernel has them ---"]
    for number, thread in _threads(pid).items():
        late = thread["cpu"] - before.get(number, thread)["cpu"]
        waits = f"call {thread['call']} {thread['wait']} {thread['file']}".rstrip()
        times = f"{thread['cpu'] / 100:.2f} {late / 100:.2f}"  # clock ticks, see core/trace/process_state.h
        lines.append(f"{number} {thread['name']} {thread['state']} {times} {waits}")
    lines.append(f"--- host: {os.cpu_count()} CPUs, load {Path('/proc/loadavg').read_text().strip()} ---")
    for kind in ("cpu", "memory", "io"):
        pressure = Path("/proc/pressure", kind)
        if pressure.exists():
            lines += [f"{kind} {line}" for line in pressure.read_text().splitlines()]
    if native:
        lines.append(_native_stacks(pid))
    return "\n".join(lines)


def _threads(pid: int) -> dict[int, dict[str, Any]]:
    state = _core.process_state(pid)
    return {thread["id"]: thread for thread in json.loads(state)["threads"]} if state else {}


def _native_stacks(pid: int) -> str:
    gdb = shutil.which("gdb")
    if gdb is None:
        return "no gdb here for stacks outside Python"
    command = [gdb, "-nx", "-batch", "-p", str(pid), "-ex", "thread apply all backtrace 20"]
    environ = {**os.environ, "DEBUGINFOD_URLS": ""}  # gdb would query that server
    try:
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GDB_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"gdb took more than {GDB_SECONDS:g} s"
    except OSError as error:
        return f"gdb cannot be run: {error}"
    return "\n".join(line[:200] for line in done.stdout.splitlines() if line.startswith(("#", "Thread"))) or done.stderr
