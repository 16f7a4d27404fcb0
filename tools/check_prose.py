"""Check that docstrings, comments, messages and pages avoid wording that readers find hard.

    python tools/check_prose.py [root of the repository] [--list]

Part of `make lint`. Each rule has a budget: the number of places that may still break it. The check fails if a number
is above its budget. If it is below, it says so: please lower the budget, which can only shrink. `--list` prints all
places.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """Wording to avoid, its replacement, and the number of places that may still contain it."""

    pattern: re.Pattern[str]
    instead: str
    budget: int
    kind: str = "line"


def _rule(pattern: str, instead: str, budget: int, kind: str = "line") -> Rule:
    return Rule(re.compile(pattern, re.IGNORECASE), instead, budget, kind)


RULES = {
    "accepted is": _rule(r"accepted (is|are)\b", "`x` must be ..., got ...", 0),
    "unnamed subject": _rule(r"\b(nobody|somebody|whoever|everybody)\b", "name the rank, caller or process", 15),
    "old idiom": _rule(
        r"\b(in vain|for ever|becomes? of|of its own|of ours|how many-th|what is none)\b", "a plain verb", 11
    ),
    "fragment": _rule(
        r"\A(What|Of|Who|Whoever|Whether|Those|That which)\b|\A[^\n]*\?(?=\n\n|\s*\Z)|\A.{0,24}(?=\n\n|\Z)",
        "an imperative sentence with an object, or a noun phrase for a class or module",
        21,
        "docstring",
    ),
    # Tables, comments and words that cannot be broken may be longer.
    "long prose": _rule(
        r"\A(?=.{101})\s*([-*] +|\d+\. +)?(?!\||<!--|[-*] |\d+\. )\S{1,98}\s", "lines of up to 100 columns", 0, "prose"
    ),
}
FILES = {
    "**/*.py": ("src", "tools", "tests", "benchmarks", "examples"),
    "**/*.h": ("core", "bindings"),
    "**/*.cc": ("core", "bindings"),
    "**/*.md": ("docs",),
    "*.md": (".",),
}
OWN = ("check_prose.py", "test_check_prose.py")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) for each docstring in a Python file."""
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text
        pending += [child for child in getattr(node, "body", []) if isinstance(child, ast.stmt)]


def texts(root: Path) -> Iterator[tuple[Path, str, int, str]]:
    """Yield (file, kind, line, text) for each text to check.

    ``kind`` is line for each line of a file, prose for each line of a page outside of code, and docstring.
    """
    for pattern, folders in FILES.items():
        for path in sorted(path for folder in folders for path in (root / folder).glob(pattern)):
            if path.name in OWN:
                continue
            source = path.read_text()
            code = False
            for number, line in enumerate(source.splitlines(), 1):
                yield path, "line", number, line
                fence = line.lstrip().startswith("```")
                code ^= fence
                if path.suffix == ".md" and not code and not fence:
                    yield path, "prose", number, line
            if path.suffix == ".py" and "tests" not in path.relative_to(root).parts:
                yield from ((path, "docstring", line, text) for line, text in docstrings(ast.parse(source)))


def found(root: Path) -> dict[str, list[str]]:
    """Return the violations of each rule, formatted as FILE:LINE: TEXT."""
    places: dict[str, list[str]] = {name: [] for name in RULES}
    for path, kind, line, text in texts(root):
        for name, rule in RULES.items():
            if rule.kind == kind:
                places[name] += [
                    f"{path.relative_to(root)}:{line}: {text.strip()[:100]!r}" for _ in rule.pattern.finditer(text)
                ]
    return places


def main(arguments: list[str]) -> int:
    """Print the rules whose count differs from the budget, or all places with `--list`. Return the exit code."""
    roots = [argument for argument in arguments if argument != "--list"]
    places = found(Path(roots[0]) if roots else Path(__file__).resolve().parents[1])
    if "--list" in arguments:
        print(*(f"{name}: {place}" for name, paths in places.items() for place in paths), sep="\n")
        return 0
    wrong = 0
    for name, paths in places.items():
        rule = RULES[name]
        if len(paths) > rule.budget:
            print(f"{name}: at most {rule.budget} places allowed, got {len(paths)}; write {rule.instead} (--list)")
        elif len(paths) < rule.budget:
            print(f"{name}: {len(paths)} places are left; lower its budget of {rule.budget} in tools/check_prose.py")
        wrong += len(paths) > rule.budget
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
