#!/usr/bin/env bash
# Installs what extras of pyproject.toml name, without installing (and so building) the package itself:  install-dev-tools.sh EXTRA...
# With "kubernetes" also the models of Kubeflow's operators.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=$(mktemp)
trap 'rm -f "$requirements"' EXIT
python - "$@" <<'PY' >"$requirements"
import re, sys
try:
    import tomllib
except ImportError:  # Python 3.10; pip carries a copy
    from pip._vendor import tomli as tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
print("\n".join(r for name in sys.argv[1:] for r in extras[name] if not re.match(r"horovod\b", r)))
PY
pip install -qq -r "$requirements"
# For its models, in tests of manifests. It asks for a client of Kubernetes below 36, which only its own client needs.
case " $* " in *" kubernetes "*) pip install -qq --no-deps kubeflow-training==1.9.4 ;; esac
