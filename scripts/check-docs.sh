#!/usr/bin/env bash
# Fails when a generated document differs from what the code says, or a relative link in a document leads nowhere.
set -euo pipefail
cd "$(dirname "$0")/.."
python - <<'PY'
import re, sys
from pathlib import Path

from horovod.common.settings import generate_docs

bad = []
if Path("docs/settings.md").read_text() != generate_docs():
    bad.append("docs/settings.md is not current: python -m horovod.common.settings > docs/settings.md")
for page in [*Path(".").glob("*.md"), *Path("docs").rglob("*.md"), *Path("benchmarks").rglob("*.md")]:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target and not (page.parent / target).exists():
            bad.append(f"{page}: the link to {target} leads nowhere")
print("\n".join(bad) or "documents are current")
sys.exit(bool(bad))
PY
