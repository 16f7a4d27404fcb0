"""Background processes that end when the cluster's namespaces do, and a function that waits for a condition."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Seconds between checks of a condition for which a caller waits.
EVERY = 0.05


class Process:
    """Background process that writes its output to the file `log`."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, cwd: Path | None = None) -> None:
        self.name, self.log = name, log
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=cwd, start_new_session=True
            )
        self.pid = self._process.pid

    def check(self) -> None:
        """Raise RuntimeError if the process has exited."""
        if self._process.poll() is not None:
            text = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.name} has ended with exit code {self._process.returncode}:\n{text}")


def wait_until(holds: Callable[[], bool], seconds: float, what: str, process: Process | None = None) -> None:
    """Wait until `holds()` returns True.

    Raises:
        TimeoutError: If this takes longer than `seconds`. `what` describes the condition in the message.
        RuntimeError: If `process` exits before that.
    """
    until = time.monotonic() + seconds
    while not holds():
        if process:
            process.check()
        if time.monotonic() > until:
            text = process.log.read_text(errors="replace")[-3000:] if process else ""
            raise TimeoutError(f"waited {seconds:g} s for {what}\n{text}")
        time.sleep(EVERY)
