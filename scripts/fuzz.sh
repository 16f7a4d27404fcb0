#!/usr/bin/env bash
# Searches for inputs that break a parser, guided by coverage: fuzz.sh SECONDS BUILD_DIR   (SECONDS: for all targets together)
# C++ needs clang with libFuzzer, which is installed with apt-get if it is missing. Python uses atheris, in a separate environment.
# The search starts from fuzz/corpus. Inputs that cause failures are in BUILD_DIR/found afterwards: correct the error and add them to
# fuzz/corpus/TARGET.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1 build=$2
have() { echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
  clang++ -x c++ -fsanitize=fuzzer,address,undefined - -o /dev/null 2>/dev/null; }
if ! have; then
  command -v apt-get >/dev/null || { echo "clang++ with libFuzzer is missing: install clang and its compiler-rt" >&2; exit 1; }
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  install() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q clang >/dev/null; }  # recommends compiler-rt
  install || { "${sudo[@]}" apt-get update -q >/dev/null; install; }
  have || { echo "clang is installed, but has no libFuzzer" >&2; exit 1; }
fi
scripts/install-doctest.sh  # required by CMake
cmake -S . -B "$build/core" -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo -DHVD_FUZZ=ON -DHVD_BUILD_TESTS=ON \
  -DHVD_SANITIZE=fuzzer-no-link,address,undefined -DHVD_BUILD_PYTHON=OFF >/dev/null
core=(driver messages notes secure_link)
cmake --build "$build/core" --target "${core[@]/#/fuzz_}"
if [ ! -e "$build/python/ready" ]; then
  python -m venv "$build/python"
  "$build/python/bin/python" -m tools.packages install atheris msgspec pyzmq cloudpickle && touch "$build/python/ready"
fi
python=($(PYTHONPATH=. "$build/python/bin/python" -c 'from fuzz.targets import TARGETS; print(*TARGETS)'))
each=$((seconds / (${#core[@]} + ${#python[@]})))
mkdir -p "$build/found"
failed=()
fuzz() { # target, command...: runs it and prints a line or two about the result
  local target=$1 log="$build/$1.log"
  shift
  mkdir -p "$build/corpus/$target"
  local options=("$build/corpus/$target" "fuzz/corpus/$target" -max_total_time="$each" -timeout=20 -rss_limit_mb=2048
    -print_final_stats=1 -artifact_prefix="$build/found/$target-")
  if UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 "$@" "${options[@]}" >"$log" 2>&1; then
    echo "$target: $(grep -o 'number_of_executed_units: .*' "$log"), $(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -1)"
  else
    failed+=("$target")
    echo "$target: FAILED, see $log"
    tail -n 40 "$log"
  fi
}
for target in "${core[@]}"; do fuzz "$target" "$build/core/fuzz/core/fuzz_$target"; done
for target in "${python[@]}"; do PYTHONPATH=. fuzz "$target" "$build/python/bin/python" -m fuzz.fuzz "$target"; done
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}; inputs are in $build/found" >&2; exit 1; }
