#!/usr/bin/env bash
# Installs assemblers and a disassembler for GPUs, for tests of the second tier that check the machine code of the device kernels: ptxas of CUDA
# 12.1, which still supports Volta, and ptxas and nvdisasm of CUDA 13. They take 70 MB in a separate folder of the environment. Never fails: if
# they are missing, the tests are skipped with the reason.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=$(python -c 'import sys; print(sys.prefix)')/ptxas
[ -e "$folder/complete" ] && exit 0
python -m tools.packages install --no-deps --target "$folder" nvidia-cuda-nvcc-cu12==12.1.105 nvidia-cuda-nvcc==13.2.78 nvidia-cuda-nvdisasm==13.2.78 &&
  touch "$folder/complete" && exit 0
echo "ptxas cannot be installed; the tests that assemble the kernels will be skipped" >&2
rm -rf "$folder"
exit 0
