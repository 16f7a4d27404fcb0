"""Runs all cases of all faces on 1 to 4 ranks and prints docs/faces.md; failures go to stderr, and end it with 1.

python -m tests.conformance > docs/faces.md
python -m tests.conformance numpy "keras, on jax"    tries these alone, and prints no page
"""

from __future__ import annotations

import sys
import time

from tests.conformance.adapters import ALL, BY_NAME, Adapter
from tests.conformance.cases import SIZES, Case, cases, errors
from tests.conformance.matrix import page
from tests.conformance.running import PATIENCE, SETTINGS, run
from tests.pool import Fleets

Failed = list[tuple[int, Case | str]]


def main() -> int:
    fleets, failures = Fleets(), {}
    chosen = [BY_NAME[name] for name in sys.argv[1:]]
    try:
        for adapter in chosen or ALL:
            failures[adapter.name] = [pair for size in SIZES for pair in _failures(fleets, adapter, size)]
    finally:
        fleets.close()
    if not chosen:
        print(page(failures), end="")
    return int(any(failures.values()))


def _failures(fleets: Fleets, adapter: type[Adapter], size: int) -> Failed:
    tried = [*cases(adapter.offer, size), *errors(adapter.offer, size)]
    begun = time.monotonic()
    calls = [case for case in tried if isinstance(case, Case)]
    wrong = [case for case in tried if isinstance(case, str)]
    job = fleets.maker(adapter.kind)(size, **SETTINGS)
    failed: dict[Case | str, str] = {}
    for rank, (worked, refused) in enumerate(job.run(run, adapter.name, calls, wrong, timeout=PATIENCE)):
        for case, text in zip(tried, [*worked, *refused], strict=True):
            if text:
                failed.setdefault(case, f"on rank {rank}: {text}")
    for case, text in failed.items():
        print(f"{adapter.name} on {size} ranks, {case} {text}", file=sys.stderr)
    seconds = time.monotonic() - begun
    print(f"{adapter.name} on {size} ranks: {len(tried)} cases, {len(failed)} fail, {seconds:.1f} s", file=sys.stderr)
    return [(size, case) for case in failed]


if __name__ == "__main__":
    sys.exit(main())
