"""Run all cases of all frontends on 1 to 4 ranks and print docs/frontends.md.

Failures go to stderr, and the exit status is then 1.

    python -m tests.conformance > docs/frontends.md
    python -m tests.conformance numpy "keras, on jax"    runs only these, and prints no page
"""

from __future__ import annotations

import sys
import time

from tests.conformance.adapters import ALL, BY_NAME, Adapter
from tests.conformance.cases import SIZES, Case
from tests.conformance.matrix import page
from tests.conformance.running import failures
from tests.pool import Fleets

Failed = list[tuple[int, Case | str]]


def main() -> int:
    fleets, found = Fleets(), {}
    chosen = [BY_NAME[name] for name in sys.argv[1:]]
    try:
        for adapter in chosen or ALL:
            found[adapter.name] = [pair for size in SIZES for pair in _failures(fleets, adapter, size)]
    finally:
        fleets.close()
    if not chosen:
        print(page(found), end="")
    return int(any(found.values()))


def _failures(fleets: Fleets, adapter: type[Adapter], size: int) -> Failed:
    start = time.monotonic()
    tried, failed = failures(fleets, adapter.name, size)
    for case, text in failed.items():
        print(f"{adapter.name} on {size} ranks, {case} {text}", file=sys.stderr)
    seconds = time.monotonic() - start
    print(f"{adapter.name} on {size} ranks: {tried} cases, {len(failed)} fail, {seconds:.1f} s", file=sys.stderr)
    return [(size, case) for case in failed]


if __name__ == "__main__":
    sys.exit(main())
