#!/usr/bin/env bash
# Installs what the extras "dev" and "test" of pyproject.toml name, or those given, without installing (and so building) the package itself:
# install-dev-tools.sh [EXTRA ...]
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
[ $# -gt 0 ] || set -- dev test
python - "$@" <<'PY' >"$requirements"
import re
import sys
try:
    import tomllib
except ImportError:  # Python 3.10; pip carries a copy
    from pip._vendor import tomli as tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print("\n".join(r for name in sys.argv[1:] for r in extras[name] if not re.match(r"horovod\b", r)))
PY
pip install -qq -r "$requirements"
