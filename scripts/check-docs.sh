#!/usr/bin/env bash
# Fails when a generated document differs from what the code says, a relative link in a document leads nowhere, or no way leads from
# docs/index.md to a page of docs.
set -euo pipefail
cd "$(dirname "$0")/.."
python - <<'PY'
import re, sys
from pathlib import Path

from horovod.common.contract.settings import generate_docs

bad = []
if Path("docs/settings.md").read_text() != generate_docs():
    bad.append("docs/settings.md is not current: python -m horovod.common.contract.settings > docs/settings.md")
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
print("\n".join(bad) or "documents are current")
sys.exit(bool(bad))
PY
