"""Programs in README.md and docs, for the tests that run them.

A comment before each code block, which readers do not see, says how the block is tested:

    <!-- run: torch: five lines -->         run by tests/torch/test_documentation.py under this name
    <!-- not run: it needs two hosts -->    not run, and why

A diff block (```diff) is two programs: one without the added lines and one without the removed lines. Output and
text (```text), diagrams (```mermaid, ```{...}) and commands that tests/runner/test_documentation.py parses need no
comment.
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
    """A fenced code block of a page."""

    where: str
    """Location, such as README.md:57."""
    language: str
    mark: str
    """Text of the comment before the block, or empty."""
    text: str

    def without(self, sign: str) -> str:
        """Return the program of a diff block without the lines that begin with ``sign``, + or -."""
        return "".join(line[1:] for line in self.text.splitlines(keepends=True) if not line.startswith(sign))


def blocks() -> list[Block]:
    """Return all code blocks of README.md, the other top-level pages and docs; empty if the pages are not installed."""
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
    """Return by name the blocks that the tests of tests/``folder`` run."""
    prefix = f"run: {folder}: "
    return {block.mark.removeprefix(prefix): block for block in blocks() if block.mark.startswith(prefix)}
