#!/usr/bin/env bash
# Builds the checkout on a machine with a GPU and runs the checks that need one: gpu-check.sh [OUT]   (OUT: build/gpu-check/out)
# Takes at most 9 minutes (SECONDS_IN_ALL=540). If there is no time for the last steps, run them in another call. Needs CMake, Ninja, a C++
# compiler, Python with PyTorch for CUDA, and .gpu-pack, which scripts/gpu-check-pack.sh creates on another machine, but neither network nor
# root. Uses only the first GPU and does not change its settings.
#   STEPS="probe build operations"  runs only these steps
#   DRY_RUN=1                  tests the checks themselves without a GPU, with simulated libraries and the CPU
# Each step has a deadline, and the others continue if one fails. OUT contains table.txt (step, result, seconds), probe.json, nccl.json,
# benchmark.json, results.md (its tables, for benchmarks/RESULTS.md), log.txt (the logs of all steps, one after another) and logs.tar.gz.
# The exit code is 1 if a step failed.
set -uo pipefail
[ $# = 0 ] || { mkdir -p "$1" && out=$(cd "$1" && pwd); } || exit 1
cd "$(dirname "$0")/.." || exit 1
root=$PWD work=$PWD/build/gpu-check
out=${out:-$work/out}
mkdir -p "$out" "$work/logs" || exit 1
python=$(command -v "${PYTHON:-python3}") || { echo "there is no ${PYTHON:-python3}" >&2; exit 1; } # the one that has PyTorch
pack=$root/.gpu-pack
in_all=${SECONDS_IN_ALL:-540}
default="probe build kernels operations streams training benchmark optimizer nccl failures memcheck doctor racecheck"
STEPS=${STEPS:-$default nccl_engine by_host four_ranks added operations_memcheck}
dry=${DRY_RUN:-}
export PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
export CMAKE_BUILD_PARALLEL_LEVEL
unset PYTHONPATH
# Do not load other plugins of pytest that are installed on the machine.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
export TORCHINDUCTOR_COMPILE_THREADS=1

# The driver's location differs between machines.
library=libcuda.so.1
if [ -z "$dry" ] && ! "$python" -c 'import ctypes; ctypes.CDLL("libcuda.so.1")' 2>/dev/null; then
  for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/lib/wsl/lib; do
    [ -e "$folder/libcuda.so.1" ] || continue
    export LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    break
  done
fi

# -- steps: each writes to stdout and returns its status ---------------------------------------------------------------------------

probe() {
  if [ -n "$dry" ]; then
    echo "left out: it wants a driver"
    return 77
  fi
  "$python" tools/gpu_probe.py --driver "$library" --json "$out/probe.json"
}

# The real NCCL with two ranks, without the package.
nccl() {
  if [ -n "$dry" ]; then
    echo "left out: it wants a driver"
    return 77
  fi
  "$python" tools/nccl_probe.py --driver "$library" --json "$out/nccl.json"
}

# Creates an environment that also sees the packages of $python. It uses a .pth file because $python may itself be in an environment.
build() {
  "$python" -m venv --without-pip "$work/env" || return
  local site outer
  site=$("$work/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return
  outer=$("$python" -c 'import site, sysconfig
places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
print("; ".join(f"site.addsitedir({p!r})" for p in dict.fromkeys(places)))') || return
  echo "import site; $outer" >"$site/_a_outer.pth"
  if [ -d "$pack/wheels" ]; then
    python -m pip install -q --no-index --no-deps --ignore-installed "$pack"/wheels/*.whl || return
  else
    echo "there is no .gpu-pack; taking what is installed"
  fi
  echo "$(python --version), $(python -c 'import torch; print("torch", torch.__version__, torch.version.cuda)'), $(cmake --version | head -1)"
  python -m pip install --no-index --no-deps --no-build-isolation --force-reinstall \
    --config-settings=build-dir="$work/python" --editable . || return
  python -c 'import torch, horovod.torch as hvd; hvd.init(); print(hvd.allreduce(torch.ones(2)), hvd.cuda_built(), hvd.nccl_built())'
}

kernels() {
  local include=() sizes=(256 0.2) library=()
  [ ! -e "$work/python/core/libhvd_core.a" ] || library=(-DHVD_CORE_LIBRARY="$work/python/core/libhvd_core.a")
  [ ! -d "$pack/include" ] || include=(-DDOCTEST_INCLUDE="$pack/include")
  cmake -S . -B "$work/unit" -G Ninja -DCMAKE_BUILD_TYPE=Release -DHVD_BUILD_TESTS=ON -DHVD_BUILD_PYTHON=OFF \
    "${library[@]}" "${include[@]}" >/dev/null &&
    cmake --build "$work/unit" --target test_kernels kernels_bench simulated_cuda || return
  if [ -n "$dry" ]; then
    export SIMCUDA_KERNELS=$work/unit/simulated/libhvd_kernels_host.so SIMCUDA_DELAY_US=0
    library=$work/unit/simulated/libcuda.so.1 sizes=(1 0)
  fi
  HVD_KERNELS_DRIVER=$library "$work/unit/tests/core/test_kernels" --duration=true || return
  "$work/unit/benchmarks/engine/kernels_bench" "${sizes[@]}" "$library"
}

run_pytest() { # files and further arguments for pytest; on a GPU nothing may be skipped
  [ -z "$dry" ] || export HVD_TEST_GPU=${HVD_TEST_GPU:-cpu}
  python -m pytest -q -p pytest_timeout -p no:cacheprovider --durations=15 "$@"
}

operations() { run_pytest tests/gpu/test_operations.py tests/gpu/test_arrays.py; }
streams() { run_pytest tests/gpu/test_streams.py; }
training() { run_pytest tests/gpu/test_training.py; }
failures() { run_pytest tests/gpu/test_failures.py; }

# NCCL through the engine; in a dry run with the simulated libraries.
nccl_engine() {
  [ -z "$dry" ] || export HVD_TEST_GPU=simulated
  run_pytest tests/gpu/test_nccl.py
}

measure() { # ranks, label, further arguments of benchmarks/gpu.py
  local ranks=$1 label=$2 options=()
  shift 2
  [ -z "$dry" ] || options+=(--device cpu --quick)
  HVD_COMMIT=$(git rev-parse --short HEAD 2>/dev/null) \
    python -m horovod.runner -np "$ranks" python benchmarks/gpu.py --json "$out/benchmark.json" --label "$label" "${options[@]}" "$@"
}
benchmark() { measure 2 "in each other's memory (CUDA IPC)"; }
four_ranks() { measure 4 "in each other's memory (CUDA IPC), more ranks" --few; }
by_host() { HOROVOD_CUDA_IPC=0 measure 2 "by way of the host" --few; }
added() { measure 2 "what the engine adds to NCCL" --nccl; }
optimizer() { measure 1 "a training step" --optimizer; }

doctor() {
  python -m horovod.runner --doctor
  echo "the doctor ended with $?" # problems of the machine are not failures of this check
  python -m horovod.runner --check-build --verbose
}

# The sanitizer executes kernels one after another. It does not work on gVisor, which does not count as a failure.
sanitizer() { # tool, command
  local tool which=$1
  shift
  tool=$(command -v compute-sanitizer || ls -d /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | tail -1)
  if [ -z "$tool" ] || [ -n "$dry" ]; then
    echo "left out: there is no compute-sanitizer"
    return 77
  fi
  HVD_KERNELS_DRIVER=$library "$tool" --tool "$which" --target-processes all --error-exitcode 9 --print-limit 20 "$@"
  local status=$?
  if grep -q 'Device not supported' "$work/logs/"*"-$GPU_CHECK_STEP.log"; then
    echo "left out: compute-sanitizer does not support the device here"
    return 77
  fi
  return $status
}
memcheck() { sanitizer memcheck "$work/unit/tests/core/test_kernels"; }
racecheck() { sanitizer racecheck "$work/unit/tests/core/test_kernels"; }
# The engine with PyTorch: copies, packing, reductions in each other's memory.
operations_memcheck() {
  local file=tests/gpu/test_operations.py
  sanitizer memcheck python -m pytest -q -p pytest_timeout -p no:cacheprovider "$file::test_large[2]" "$file::test_scaled_and_moved_arrays[2]"
}

# -- running the steps -------------------------------------------------------------------------------------------------------------

deadline_of() { # of a step, in seconds
  case $1 in
    probe | nccl) echo 70 ;;
    build) echo 200 ;;
    kernels | training | benchmark | operations_memcheck) echo 150 ;;
    operations | nccl_engine) echo 120 ;;
    streams | failures | by_host | four_ranks | optimizer) echo 100 ;;
    memcheck | racecheck) echo 90 ;;
    *) echo 60 ;;
  esac
}

# The script calls itself for each step, so that `timeout` can end all processes of the step.
if [ -n "${GPU_CHECK_STEP:-}" ]; then
  PATH=$work/env/bin:$(dirname "$python"):$PATH
  export PATH VIRTUAL_ENV=$work/env
  "$GPU_CHECK_STEP"
  exit
fi

rm -f "$work"/logs/*.log
printf '%-20s %-10s %s\n' step result seconds >"$out/table.txt"
failed=0 number=0
for step in $STEPS; do
  number=$((number + 1))
  log=$work/logs/$(printf %02d $number)-$step.log
  left=$((in_all - SECONDS)) limit=$(deadline_of "$step")
  [ "$limit" -le "$left" ] || limit=$left
  began=$SECONDS
  if [ "$limit" -lt 5 ]; then
    result="no time"
    failed=1
    echo "no time was left" >"$log"
  else
    echo "== $step (at most $limit s)"
    GPU_CHECK_STEP=$step timeout -k 5 "$limit" bash "$root/scripts/gpu-check.sh" "$out" >"$log" 2>&1 </dev/null
    case $? in
      0) result=ok ;;
      77) result="left out" ;;
      124 | 137) result=timeout failed=1 ;;
      *) result=failed failed=1 ;;
    esac
    tail -n 12 "$log"
  fi
  printf '%-20s %-10s %s\n' "$step" "$result" $((SECONDS - began)) | tee -a "$out/table.txt"
done

for log in "$work"/logs/*.log; do
  echo "==== $(basename "$log" .log)"
  cat "$log"
done >"$out/log.txt"
tar -czf "$out/logs.tar.gz" -C "$work" logs
if [ -e "$out/benchmark.json" ]; then
  "$python" benchmarks/gpu_tables.py "$out/benchmark.json" "$out/table.txt" >"$out/results.md"
fi
echo
cat "$out/table.txt"
exit $failed
