"""Command line of the flight recorder: ``python -m horovod.recorder diff DIR``.

The exit code is 0 if all ranks ran the same operations, 1 if they diverged, and 2 if the files cannot be read.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from horovod.recorder import diff


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.recorder", description="What flight recorders have written."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("diff", help="name the first divergence between ranks")
    one.add_argument("directory", type=Path, help="with the files recorder.rankN.jsonl of the ranks")
    given = parser.parse_args(arguments)
    try:
        text, parted = diff.compare(diff.read_folder(given.directory))
    except (OSError, ValueError) as error:
        print(f"horovod.recorder: {error}", file=sys.stderr)
        return 2
    print(text, end="")
    return 1 if parted else 0


if __name__ == "__main__":
    sys.exit(main())
