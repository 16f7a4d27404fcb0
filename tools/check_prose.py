"""Check that docstrings, comments, messages and pages avoid wording that readers find hard.

    python tools/check_prose.py [root of the repository] [--list]

Part of `make lint`. Each rule has a budget: the number of places that still break it. The check fails if a number is
above its budget, and also if it is below, so that the budget is lowered in the same commit and can only shrink.
`--list` prints all places.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """A kind of wording to avoid, what to write instead, and how many places are still allowed."""

    pattern: re.Pattern[str]
    instead: str
    budget: int
    docstrings_only: bool = False


def _rule(pattern: str, instead: str, budget: int, docstrings_only: bool = False) -> Rule:
    return Rule(re.compile(pattern, re.IGNORECASE), instead, budget, docstrings_only)


RULES = {
    "accepted is": _rule(r"accepted (is|are)\b", "`x` must be ..., got ...", 582),
    "unnamed subject": _rule(r"\b(nobody|somebody|whoever|everybody)\b", "name the rank, caller or process", 90),
    "old idiom": _rule(
        r"\b(in vain|for ever|becomes? of|of its own|of ours|how many-th|what is none)\b", "a plain verb", 41
    ),
    "fragment": _rule(
        r"\A(What|Of|Who|Whoever|Whether|Those|That which)\b|\A[^\n]*\?(?=\n\n|\s*\Z)|\A.{0,24}(?=\n\n|\Z)",
        "an imperative sentence with an object, or a noun phrase for a class or module",
        32,
        docstrings_only=True,
    ),
}
CODE = ("src", "tools", "tests", "benchmarks", "examples")
NATIVE = ("core", "bindings")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")


def python_texts(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, line, text) of each docstring, comment and string of a Python file."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield "docstring", getattr(node, "lineno", 1), text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield "comment", token.start[0], token.string
        elif token.type == tokenize.STRING and not token.string.lstrip("rR").startswith(('"""', "'''")):
            yield "string", token.start[0], token.string


def texts(root: Path) -> Iterator[tuple[Path, str, int, str]]:
    """Yield (file, kind, line, text) of everything to check in the repository."""
    for path in sorted(path for folder in CODE for path in (root / folder).rglob("*.py")):
        for kind, line, text in python_texts(path.read_text()):
            if kind != "docstring" or "tests" not in path.relative_to(root).parts:
                yield path, kind, line, text
            else:
                yield path, "comment", line, text
    for path in sorted(path for folder in NATIVE for path in (root / folder).rglob("*.*")):
        if path.suffix in (".h", ".cc"):
            for line, text in enumerate(path.read_text().splitlines(), 1):
                yield path, "comment", line, text
    for path in sorted(path for name in PAGES for path in [root / name, *(root / name).rglob("*.md")]):
        if path.suffix == ".md":
            for line, text in enumerate(path.read_text().splitlines(), 1):
                yield path, "page", line, text


def found(root: Path) -> dict[str, list[str]]:
    """Return the places that break each rule, as FILE:LINE: TEXT."""
    places: dict[str, list[str]] = {name: [] for name in RULES}
    own = Path(__file__).resolve()
    for path, kind, line, text in texts(root):
        for name, rule in RULES.items():
            if path.resolve() != own and (kind == "docstring" or not rule.docstrings_only):
                place = f"{path.relative_to(root)}:{line}: {text.strip().splitlines()[0][:100] if text.strip() else ''}"
                places[name] += [place] * len(rule.pattern.findall(text))
    return places


def main(arguments: list[str]) -> int:
    """Print which budgets do not match, or with `--list` all places; return the exit code."""
    roots = [word for word in arguments if word != "--list"]
    places = found(Path(roots[0]) if roots else Path(__file__).resolve().parents[1])
    if "--list" in arguments:
        print(*(f"{name}: {place}" for name, where in places.items() for place in where), sep="\n")
        return 0
    wrong = 0
    for name, where in places.items():
        rule = RULES[name]
        if len(where) > rule.budget:
            print(f"{name}: at most {rule.budget} places allowed, got {len(where)}; write {rule.instead} (--list)")
        elif len(where) < rule.budget:
            print(f"{name}: {len(where)} places are left; lower its budget of {rule.budget} in tools/check_prose.py")
        wrong += len(where) != rule.budget
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
