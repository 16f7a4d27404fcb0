"""Hand-written mutants of Python and C++ code, defined in the table `by_hand.txt`.

This module tests the Python mutants. `native_mutants.py` tests the C++ mutants.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.python_mutants import Mutant, Target, patience, run_tests


@dataclass(frozen=True)
class Chosen:
    """Mutant that replaces one piece of a file's text.

    Attributes:
        file: Path of the file.
        binary: Test binary for a C++ file; empty for a Python file.
        tests: Tests that should detect the mutant: names of doctest cases separated by commas, or Python test files
            separated by spaces.
        before: Text to replace, which occurs once in the file.
        after: Its replacement.
    """

    file: str
    binary: str
    tests: str
    before: str
    after: str


def table(text: str) -> list[Chosen]:
    """Parse the table of mutants. Each paragraph describes one mutant.

    A paragraph has a line `file binary: tests` or `file.py: tests`, then `- before` and `+ after`.

    Raises:
        ValueError: If a paragraph is malformed.
    """
    found = []
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        place, colon, tests = lines[0].partition(": ")
        file, _, binary = place.partition(" ")
        before = [line[2:] for line in lines[1:] if line.startswith("-")]
        after = [line[2:] for line in lines[1:] if line.startswith("+")]
        good = colon and before and len(before) + len(after) == len(lines) - 1
        if not good or file.endswith(".py") == bool(binary):
            raise ValueError(
                f"{lines[0]!r} must be `file binary: tests`, for a Python file `file: tests`, followed by lines that "
                "begin with `- ` and `+ `"
            )
        found.append(Chosen(file, binary, tests, "\n".join(before), "\n".join(after)))
    return found


def mutated(source: str, chosen: Chosen) -> str:
    """Apply the change to the text. Raises ValueError unless `before` occurs exactly once."""
    if source.count(chosen.before) != 1:
        raise ValueError(
            f"{chosen.file}: {chosen.before!r} must be there once, got {source.count(chosen.before)} times"
        )
    return source.replace(chosen.before, chosen.after)


def mutant(source: str, chosen: Chosen, outcome: str) -> Mutant:
    """Return a Mutant for the report. `outcome` is "passed", "failed" or "hung"."""
    line = source[: source.index(chosen.before)].count("\n") + 1
    change = " ".join(f"{chosen.before} -> {chosen.after}".split())
    return Mutant.after(outcome, chosen.file, line, change, source)


def outdated(root: Path, entries: list[Chosen]) -> list[str]:
    """Return a message for each mutant in the table whose original text no longer exists in its file."""
    found = []
    for entry in entries:
        try:
            mutated((root / entry.file).read_text(encoding="utf-8"), entry)
        except (OSError, ValueError) as error:
            found.append(f"by_hand.txt: {error}")
    return found


def by_tests(entries: list[Chosen]) -> list[list[Chosen]]:
    """Return the Python mutants in the table, grouped by the tests that should detect them."""
    groups: dict[str, list[Chosen]] = {}
    for entry in entries:
        if not entry.binary:
            groups.setdefault(entry.tests, []).append(entry)
    return list(groups.values())


def try_python(root: Path, group: list[Chosen], jobs: int, report: Callable[[Mutant], None]) -> list[Mutant]:
    """Test Python mutants that share the same tests. Raise RuntimeError if the tests fail on the unmodified code."""
    tests = tuple(group[0].tests.split())
    seconds = max(patience(root, Target(file, tests)) for file in dict.fromkeys(entry.file for entry in group))

    def attempt(entry: Chosen) -> Mutant:
        source = (root / entry.file).read_text(encoding="utf-8")
        result = mutant(source, entry, run_tests(root, Target(entry.file, tests), mutated(source, entry), seconds))
        report(result)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(attempt, group))
