"""Command line of `tools.packages`."""

import sys

from tools.packages import __doc__ as usage
from tools.packages.install import install, read_settings
from tools.packages.probe import pytorch


def main(arguments: list[str]) -> int:
    """Run a command of `tools.packages` and return the exit code."""
    match arguments:
        case ["install", _, *_]:
            return install(arguments[1:])
        case ["pytorch", version]:
            choice = pytorch(version, read_settings())
            print(choice.line(), file=sys.stderr)
            print(*choice.arguments)
            return 0
        case _:
            print(usage, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
