#!/usr/bin/env bash
# Checks the documents. Fails if a generated document is outdated, a relative link is broken, a page of docs cannot be reached from
# docs/index.md, or a page names a source file (`core/agree/fuse.cc`, or the end of such a path) that does not exist.
set -euo pipefail
cd "$(dirname "$0")/.."
python - <<'PY'
import importlib.util, re, sys
from pathlib import Path

from horovod.common.contract.settings import generate_docs
from horovod.common import dtypes, ops

bad = []
if Path("docs/settings.md").read_text() != generate_docs():
    bad.append("docs/settings.md is not current: python -m horovod.common.contract.settings > docs/settings.md")
for table in (dtypes, ops):
    header = {dtypes: "core/base/dtype_table.h", ops: "core/base/reduce_op_table.h"}[table]
    if Path(header).read_text() != table.generate_header():
        bad.append(f"{header} is not current: python -m {table.__name__} > {header}")
if importlib.util.find_spec("numpy"):
    from tests.conformance.matrix import page

    if Path("docs/frontends.md").read_text() != page():
        bad.append("docs/frontends.md does not fit the cases, or tells of failures: python -m tests.conformance > docs/frontends.md")
links = {}
for page in [*Path(".").glob("*.md"), *Path("docs").rglob("*.md"), *Path("benchmarks").rglob("*.md")]:
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()) if "://" not in target]
    bad += [f"{page}: the link to {target} leads nowhere" for target in targets if not (page.parent / target).exists()]
    links[page.resolve()] = [(page.parent / target).resolve() for target in targets]
seen, found = set(), {Path("docs/index.md").resolve()}
while found:
    page = found.pop()
    seen.add(page)
    found.update(target for target in links.get(page, []) if target not in seen)
lost = sorted(str(page) for page in Path("docs").rglob("*.md") if page.resolve() not in seen)
bad += [f"{page}: no way leads there from docs/index.md (a decision belongs into docs/adr/README.md)" for page in lost]
folders = ("src", "core", "deploy", "bindings", "tests", "tools", "scripts", "benchmarks", "examples", "fuzz")
files = "\n".join(f"/{path}" for folder in folders for path in Path(folder).rglob("*.*")) + "\n"
for page in links:
    if page.name != "CHANGELOG.md":  # may name files that have been removed
        named = re.findall(r"`(\w[\w.-]*/[\w./-]+\.(?:py|cc|h|sh|txt))`", page.read_text())
        bad += [f"{page}: there is no {name}" for name in named if f"/{name}\n" not in files]
print("\n".join(bad) or "documents are current")
sys.exit(bool(bad))
PY
