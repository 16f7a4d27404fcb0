#!/usr/bin/env bash
# Compiles core/kernels/kernels.cu to core/kernels/kernels.ptx, which is committed. Needs a package index once, but no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install-nvrtc.sh
exec python tools/compile_kernels.py
