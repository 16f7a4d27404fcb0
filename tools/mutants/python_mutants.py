"""Runs the tests on each Python mutant, in a separate process per mutant."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.changes import applied, changes_of

HOOK = Path(__file__).parent / "hook"
PATIENCE = 5  # Ratio of the tests' time limit to their usual duration.
CONTROL = "control run: a mutant that cannot be imported"
LEAST = 20.0  # Minimum time limit for the tests, in seconds.


@dataclass(frozen=True)
class Target:
    """File to mutate, and the tests that should detect its mutants, as paths from the repository root."""

    file: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@dataclass(frozen=True)
class Mutant:
    """A change to a file, and its outcome: "killed", "hung" or "lives".

    The outcomes mean that the tests failed, timed out or passed. `at` is the source line where the change begins.
    """

    file: str
    line: int
    change: str
    outcome: str
    at: str = ""

    @classmethod
    def after(cls, outcome: str, file: str, line: int, change: str, source: str) -> Mutant:
        """Create a Mutant from the outcome of running its tests."""
        states = {"passed": "lives", "failed": "killed", "hung": "hung"}
        return cls(file, line, change, states[outcome], source.split("\n")[line - 1].strip())


def targets(text: str) -> list[Target]:
    """Parse lines of the form `file tests...`. Raises ValueError for other lines."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.partition("#")[0].split()
        if fields and (len(fields) < 2 or not fields[0].endswith(".py")):
            raise ValueError(f"line {number} must be a Python file and its tests, got {line!r}")
        if fields:
            found.append(Target(fields[0], tuple(fields[1:])))
    return found


def run_tests(root: Path, target: Target, text: str, seconds: float) -> str:
    """Run the tests with ``text`` as the file's contents, then kill all their processes.

    Returns:
        "passed", "failed", or "hung" if they take longer than `seconds`.
    """
    with tempfile.TemporaryDirectory(prefix="mutant") as folder:
        mutant = Path(folder) / "text.py"
        mutant.write_text(text, encoding="utf-8")
        environment = {
            **os.environ,
            "MUTANT_MODULE": target.module,
            "MUTANT_ORIGIN": str(root / target.file),
            "MUTANT_FILE": str(mutant),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": folder,
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", *target.tests]
        with _group(command, cwd=root, env=environment) as process:
            try:
                return "failed" if process.wait(timeout=seconds) else "passed"
            except subprocess.TimeoutExpired:
                return "hung"


@contextlib.contextmanager
def _group(command: list[str], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a new process group, which is killed when the context exits."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def patience(root: Path, target: Target) -> float:
    """Return the tests' timeout in seconds, based on two runs of the unmodified code.

    Raises:
        RuntimeError: If the tests fail on the unmodified code, or pass although the module raises when it is imported.
            The tests then do not import the module, or import it from another tree, so they would detect no mutant.
    """
    start = time.monotonic()
    tests = " ".join(target.tests)
    outcome = run_tests(root, target, (root / target.file).read_text(encoding="utf-8"), 600)
    if outcome != "passed":
        raise RuntimeError(f"{target.file}: its tests {tests} {outcome} without any change")
    seconds = max(LEAST, PATIENCE * (time.monotonic() - start))
    if run_tests(root, target, f"raise ImportError({CONTROL!r})\n", seconds) == "passed":
        raise RuntimeError(
            f"{target.file}: mutants have no effect: its tests {tests} pass although it cannot be imported"
        )
    return seconds


def try_all(
    root: Path, target: Target, most: int, seed: int, jobs: int, report: Callable[[Mutant], None]
) -> list[Mutant]:
    """Test up to `most` mutants of a file, chosen by `seed`.

    Raises RuntimeError if the tests fail on the unmodified file.
    """
    source = (root / target.file).read_text(encoding="utf-8")
    seconds = patience(root, target)
    changes = changes_of(source)
    chosen = random.Random(f"{seed} {target.file}").sample(changes, min(most, len(changes)))

    def attempt(number: int) -> Mutant:
        change = chosen[number]
        outcome = run_tests(root, target, applied(source, change), seconds)
        mutant = Mutant.after(outcome, target.file, change.line, str(change), source)
        report(mutant)
        return mutant

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(attempt, sorted(range(len(chosen)), key=lambda i: chosen[i].start)))
