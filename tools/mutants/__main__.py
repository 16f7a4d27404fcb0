"""Mutation tests: make small mistakes, one at a time, and check that the tests notice them.

    python -m tools.mutants [--most 20] [--seed 1] [--jobs N] [--only TEXT] [--python | --native] [--list]

README.md in this folder describes the mistakes and the known survivors. The exit code is 1 if fewer than 90 % were
noticed, or if a list names code that does not exist any more.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tools.mutants import by_hand, native_mutants
from tools.mutants.changes import changes_of
from tools.mutants.python_mutants import Mutant, targets, try_all

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENOUGH = 0.9


Known = dict[tuple[str, str, str], str]


def known(text: str) -> Known:
    """Parse the list of known survivors, which are mutants that the tests do not detect.

    Each survivor is a paragraph. It has a line `file: change`, a line `in: ` with the source line where the change
    begins, and lines with the reason.

    Returns:
        The reasons, by (file, change, line).
    """
    found = {}
    for paragraph in text.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if lines:
            file, _, change = lines[0].partition(": ")
            at, *why = (line.strip() for line in lines[1:])
            found[file, change, at.removeprefix("in: ")] = " ".join(why)
    return found


def outdated(root: Path, reasons: Known) -> list[str]:
    """Return a message for each mutant in the list of known survivors whose source line no longer exists."""
    found = []
    for file, change, at in reasons:
        source = (root / file).read_text(encoding="utf-8") if (root / file).exists() else ""
        changes = changes_of(source) if file.endswith(".py") else []
        lines = {source.split("\n")[c.line - 1].strip() for c in changes if str(c) == change}
        if at not in (source if file.endswith(".cc") else lines):
            found.append(f"known.txt: {file} has no {change!r} in {at!r} any more")
    return found


def report(mutant: Mutant) -> None:
    if mutant.outcome == "lives":
        print(f"  lives: {mutant.file}:{mutant.line}: {mutant.change}", flush=True)


def summary(mutants: list[Mutant], reasons: Known) -> list[str]:
    """Return summary lines per file and in total, and a line per undetected mutant, with the reason if it is known."""
    files = list(dict.fromkeys(mutant.file for mutant in mutants))
    lines = []
    for file in [*files, "all"]:
        count = Counter(mutant.outcome for mutant in mutants if file in (mutant.file, "all"))
        total = count.total()
        noticed = total - count["lives"]
        hung = f", of them {count['hung']} by a deadline" if count["hung"] else ""
        lines.append(f"{file:<44} {noticed:>4} of {total:>4}  {100 * noticed / max(1, total):5.1f} %{hung}")
    for mutant in mutants:
        if mutant.outcome == "lives":
            why = reasons.get((mutant.file, mutant.change, mutant.at), "not yet examined")
            lines.append(f"lives: {mutant.file}:{mutant.line}: {mutant.change}\n       {why}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--most", type=int, default=20, help="mutants of a Python module, chosen at random (default 20)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of that choice")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--only", default="", help="files with this in their path")
    parser.add_argument("--list", action="store_true", help="show the mutants of Python modules and try none")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--python", action="store_true")
    which.add_argument("--native", action="store_true")
    options = parser.parse_args()
    start = time.monotonic()
    mutants: list[Mutant] = []
    python = [t for t in targets((HERE / "modules.txt").read_text()) if options.only in t.file and not options.native]
    chosen = [c for c in by_hand.table((HERE / "by_hand.txt").read_text()) if options.only in c.file]
    chosen = [c for c in chosen if not (options.python if c.binary else options.native)]
    if options.list:
        for target in python:
            for change in changes_of((ROOT / target.file).read_text(encoding="utf-8")):
                print(f"{target.file}:{change.line}: {change}")
        return 0
    reasons = known((HERE / "known.txt").read_text())
    failed = [*by_hand.outdated(ROOT, chosen), *outdated(ROOT, reasons)]
    chosen = [c for c in chosen if not by_hand.outdated(ROOT, [c])]
    for group in by_hand.by_tests(chosen):
        print(f"chosen by hand: {group[0].tests}", flush=True)
        try:
            mutants += by_hand.try_python(ROOT, group, options.jobs, report)
        except RuntimeError as error:
            failed.append(str(error))
    for target in python:
        print(target.file, flush=True)
        try:
            mutants += try_all(ROOT, target, options.most, options.seed, options.jobs, report)
        except RuntimeError as error:
            # Report the error and continue with the other modules.
            failed.append(str(error))
    if native := [c for c in chosen if c.binary]:
        print("chosen by hand in C++", flush=True)
        mutants += native_mutants.try_table(ROOT, ROOT / "build" / "mutants", native, options.jobs, report)
    print("\n".join([*summary(mutants, reasons), *failed]))
    print(f"{time.monotonic() - start:.0f} s, seed {options.seed}, at most {options.most} of a module")
    return 0 if sum(mutant.outcome != "lives" for mutant in mutants) >= ENOUGH * len(mutants) and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
