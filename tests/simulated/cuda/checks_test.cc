// The checkers of the simulated driver, each with one error that it must detect, and CUDA rules on which
// tests of the engine rely to detect errors. Other tests cover the driver's remaining behaviour.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "harness.h"

namespace {

CUdeviceptr allocate_first() {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxPushCurrent_v2(context) || cuMemAlloc_v2(&memory, 8)) std::_Exit(99);
  return memory;
}

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The first cases use the driver only in child processes, because a fork after its first use would be
// refused.
TEST_CASE("the host may not touch device memory") {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    *reinterpret_cast<volatile char*>(allocate_first()) = 1;
    std::_Exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WTERMSIG(status) == SIGSEGV);
}
#endif

TEST_CASE("use of memory that was freed, or beyond its end, is reported by kernels, copies and a second free") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  void* host = nullptr;
  REQUIRE(cuMemAllocHost_v2(&host, 16) == 0);
  CUdeviceptr memory = gpu.memory(16);
  {
    Gate gate(stream);
    REQUIRE(cuMemcpyHtoDAsync_v2(memory, host, 16, stream) == 0);
    CHECK(cuMemFree_v2(memory) == 0);
    gate.open = true;
    gpu.finish(stream);
  }
  CHECK(complained("cuMemcpyHtoDAsync_v2 uses device memory"));
  CHECK(simcuda_at(memory, 16) != nullptr);
  CHECK(complained("after it was freed"));
  CHECK(cuMemFree_v2(memory) == kInvalidValue);
  CHECK(complained("freed already"));
  memory = gpu.memory(100);
  simcuda_at(memory + 50, 51);
  CHECK(complained("beyond the end"));
  CHECK(cuMemsetD8Async(memory, 0, 101, stream) == kInvalidValue);
#if !defined(__SANITIZE_ADDRESS__)
  static_cast<char*>(simcuda_at(memory, 100))[100] = 1;
  CHECK(cuMemFree_v2(memory) == 0);
  CHECK(complained("wrote 0 bytes behind the end"));
#endif
  CUevent event = gpu.event();
  CHECK(cuEventDestroy_v2(event) == 0);
  CHECK(cuEventQuery(event) == kInvalidHandle);
  CHECK(complained("use of an event that was destroyed"));
  cuMemFreeHost(host);
}

TEST_CASE("use without a wait is reported however the threads run, and with one it is not") {
  Gpu gpu;
  CUstream a = gpu.stream(), b = gpu.stream();
  CUevent event = gpu.event();
  CUdeviceptr from = gpu.memory(64), to = gpu.memory(64);
  CHECK(cuMemsetD8Async(from, 1, 64, a) == 0);
  CHECK(cuEventRecord(event, a) == 0);
  CHECK(cuStreamWaitEvent(b, event, 0) == 0);
  CHECK(cuMemcpyDtoDAsync_v2(to, from, 64, b) == 0);
  gpu.finish(b);
  CHECK(std::string(simcuda_violations()) == "");
  CHECK(cuMemsetD8Async(to + 60, 2, 4, a) == 0);  // after the host has waited for b
  gpu.finish(a);
  CHECK(std::string(simcuda_violations()) == "");
  CHECK(cuMemsetD8Async(from, 1, 64, a) == 0);
  gpu.pass(a);
  CHECK(cuMemcpyDtoDAsync_v2(to, from, 64, b) == 0);
  gpu.finish(a);
  gpu.finish(b);
  CHECK(complained("is not ordered after"));
  cuMemFree_v2(from);
  cuMemFree_v2(to);
}
