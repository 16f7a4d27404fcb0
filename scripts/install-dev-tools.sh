#!/usr/bin/env bash
# Installs the packages of pyproject.toml's extras together with other packages, but without the project itself, which would have to be
# built:  install-dev-tools.sh EXTRA... [-- REQUIREMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
extras=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do extras+=("$1") && shift; done
[ $# = 0 ] || shift
requirements=$(mktemp --suffix=.txt)
trap 'rm -f "$requirements"' EXIT
python - "${extras[@]}" <<'PY' >"$requirements"
import re, sys
try:
    import tomllib
except ImportError:  # Python 3.10; pip contains a copy
    from pip._vendor import tomli as tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print("\n".join(r for name in sys.argv[1:] for r in extras[name] if not re.match(r"horovod\b", r)))
PY
python -m tools.packages install -r "$requirements" "$@"
