"""The programs in README.md and docs, for the tests that run them.

Before a block, in the source of a page and invisible to its readers, stands a comment that says what becomes of it:

    <!-- run: torch: five lines -->         run by tests/torch/test_documentation.py, under this name
    <!-- not run: it needs two hosts -->    and why

A block of a diff (```diff) is two programs: without what is added, and without what is removed. No comment is needed
before output and pictures (```text), what the site draws (```mermaid, ```{...}), and commands of which the tests know
that they are understood (tests/runner/test_documentation.py).
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    where: str
    """README.md:57"""
    language: str
    mark: str
    """Text of the comment before it, or empty."""
    text: str

    def without(self, sign: str) -> str:
        """The program of a diff without the lines that begin with ``sign``, + or -."""
        return "".join(line[1:] for line in self.text.splitlines(keepends=True) if not line.startswith(sign))


def blocks() -> list[Block]:
    """All of README.md, docs and what else is at the top; none where tests run without them."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("benchmarks/*.md"))]
    found = []
    for page in pages:
        text = page.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("language")) + 1
            where = f"{page.relative_to(ROOT)}:{line}"
            found.append(Block(where, match["language"], match["mark"] or "", match["text"]))
    return found


def programs(folder: str) -> dict[str, Block]:
    """The blocks that the tests of tests/``folder`` run, by name."""
    prefix = f"run: {folder}: "
    return {block.mark.removeprefix(prefix): block for block in blocks() if block.mark.startswith(prefix)}
