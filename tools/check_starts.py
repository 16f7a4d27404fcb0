"""Check that commands start Python without the current directory on the module path.

    python tools/check_starts.py [root of the repository]

Part of `make lint`. `src/horovod/common/contract/boot.py` explains the reason and creates the arguments. In the
package, commands with an interpreter followed by one of Python's options are forbidden. In `deploy/`, `-m`, and
programs on stdin or after `-c`, are forbidden if the current directory stays on `sys.path`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_OPTIONS = re.compile(r"-[BEIOPSWXbcdimqsuvx]*[cmIS]|-")
_INTERPRETER = re.compile(r"executable|python", re.IGNORECASE)
_ALLOWED = Path("src/horovod/common/contract/boot.py")
_MODULE = re.compile(r"^\s*-\s+[\"']?-m[\"']?\s*$|\bpython[\d.]*[\"',]*\s+[\"']?-m[\"',]*\s+[\"']?horovod")
_STDIN = re.compile(r"\bpython[\d.]*\s+-(\s|$)")
_CODE = re.compile(r"(^\s*-\s|\bpython\b).*(from horovod\S* import|import horovod)")
_ISOLATED = re.compile(r"\bpython[\d.]*[\"',]*\s+[\"']?-I\b")
_SAFE = "sys.path[:] = [p for p in sys.path if p]"


def in_python(text: str) -> Iterator[int]:
    """Yield the line numbers of Python commands that pass options directly to an interpreter."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        for first, second in zip(node.elts, node.elts[1:], strict=False):
            option = isinstance(second, ast.Constant) and isinstance(second.value, str)
            if option and _OPTIONS.fullmatch(second.value) and _INTERPRETER.search(ast.unparse(first)):
                yield second.lineno


def in_text(text: str) -> Iterator[int]:
    """Yield the numbers of the lines in a manifest or shell script that start a Python interpreter unsafely."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        following = "\n".join(lines[number - 1 : number + 3])
        if (
            _MODULE.search(line)
            or (_STDIN.search(line) and _SAFE not in following)
            or (_CODE.search(line) and _SAFE not in line and not _ISOLATED.search(line))
        ):
            yield number


def check(root: Path) -> list[str]:
    """Return a message for each place that starts a Python interpreter unsafely (see the module's docstring)."""
    found = []
    for path in sorted((root / "src" / "horovod").rglob("*.py")):
        if path.relative_to(root) != _ALLOWED:
            found += [(path, line) for line in in_python(path.read_text(encoding="utf-8"))]
    for path in sorted((root / "deploy").rglob("*")):
        if path.is_file() and path.suffix in ("", ".sh", ".yaml", ".yml", ".tpl", ".def"):
            found += [(path, line) for line in in_text(path.read_text(encoding="utf-8"))]
    return [
        f"{path.relative_to(root)}:{line}: this interpreter looks for modules in the current directory; take its "
        "arguments from src/horovod/common/contract/boot.py"
        for path, line in found
    ]


def main(arguments: list[str]) -> int:
    """Print the places that start a Python interpreter unsafely, and return the exit code."""
    found = check(Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1])
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
