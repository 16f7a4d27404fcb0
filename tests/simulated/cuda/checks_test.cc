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

int end_capture(CUstream stream) {
  CUgraph graph = nullptr;
  return cuStreamEndCapture(stream, &graph);
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

TEST_CASE("memory of another process: use after its exporter freed it is a mistake on both sides") {
  int to[2], from[2];
  REQUIRE(pipe2(to, O_CLOEXEC) == 0);
  REQUIRE(pipe2(from, O_CLOEXEC) == 0);
  const pid_t child = fork();
  if (child == 0) {
    simcuda_set("collect", 1);
    const CUdeviceptr memory = allocate_first();
    CUipcMemHandle handle;
    char go = 0;
    bool good = cuIpcGetMemHandle(&handle, memory + 4) == 0 && write(from[1], &handle, sizeof handle) == sizeof handle;
    good = good && read(to[0], &go, 1) == 1 && cuMemFree_v2(memory) == 0;
    good = good && std::string(simcuda_violations()).find("which another process has open") != std::string::npos;
    good = write(from[1], &go, 1) == 1 && good;
    std::_Exit(good ? 0 : 1);
  }
  {
    Gpu gpu;
    CUipcMemHandle handle;
    REQUIRE(read(from[0], &handle, sizeof handle) == sizeof handle);
    CUdeviceptr memory = 0;
    char freed = 0;
    REQUIRE(cuIpcOpenMemHandle_v2(&memory, handle, kIpcLazyPeerAccess) == 0);
    simcuda_at(memory, 8);
    CHECK(std::string(simcuda_violations()) == "");
    REQUIRE(write(to[1], &freed, 1) == 1);
    REQUIRE(read(from[0], &freed, 1) == 1);
    simcuda_at(memory, 8);
    CHECK(complained("after its exporter freed it"));
    CHECK(cuIpcCloseMemHandle(memory) == 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  for (int fd : {to[0], to[1], from[0], from[1]}) close(fd);
}

TEST_CASE("nothing runs at the call; the legacy stream waits for blocking ones and they for it, others do not") {
  Gpu gpu;
  CUstream blocking = gpu.stream(0), free = gpu.stream(), legacy = nullptr;
  CUdeviceptr memory = gpu.memory(3);
  CUevent event = gpu.event();
  Gate gate(blocking);
  CHECK(cuMemsetD8Async(memory, 1, 1, legacy) == 0);
  CHECK(cuEventRecord(event, legacy) == 0);
  CHECK(cuMemsetD8Async(memory + 1, 1, 1, free) == 0);
  gpu.finish(free);  // would hang if it waited
  CHECK(cuEventQuery(event) == kNotReady);
  gate.open = true;
  gpu.finish(legacy);
  CHECK(cuEventQuery(event) == 0);
  cuMemFree_v2(memory);
}

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

TEST_CASE("a hole punched under a registered page is reported") {
  Gpu gpu;
  const int file = memfd_create("pages", MFD_CLOEXEC);
  REQUIRE(ftruncate(file, 4 << 12) == 0);
  void* memory = mmap(nullptr, 4 << 12, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(cuMemHostRegister_v2(memory, 4 << 12, 3) == 0);
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  CHECK(simcuda_at(address, 4 << 12) == memory);
  REQUIRE(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 12, 1 << 12) == 0);
  simcuda_at(address, 1 << 12);
  CHECK(std::string(simcuda_violations()) == "");
  simcuda_at(address, 2 << 12);
  CHECK(complained("whose pages were taken away"));
  CHECK(cuMemHostUnregister(memory) == 0);
  munmap(memory, 4 << 12);
  close(file);
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

TEST_CASE("calls that may wait for the device, and copies of pageable memory, are reported while watched") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUdeviceptr memory = gpu.memory(8);
  char pageable[8];
  Set watch("watch", 1);
  CHECK(cuMemcpyDtoHAsync_v2(pageable, memory, 8, stream) == 0);
  CHECK(complained("makes the host wait"));
  CHECK(cuMemFree_v2(memory) == 0);
  CHECK(complained("cuMemFree_v2 may wait for the device"));
}

TEST_CASE("a call that captures forbid spoils those of its own thread and global ones of any thread, not relaxed ones") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUevent event = gpu.event();
  const auto allocates = [&](int mode, bool here) {  // a thread in that mode
    int error = -1;
    const auto body = [&] {
      if (!here) cuCtxPushCurrent_v2(gpu.context);
      CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0);
      CUdeviceptr memory = 0;
      error = cuMemAlloc_v2(&memory, 8);
      if (!error) CHECK(cuMemFree_v2(memory) == 0);
      CHECK(cuThreadExchangeStreamCaptureMode(&mode) == 0);
    };
    here ? body() : std::thread(body).join();
    return error;
  };
  for (const auto& [capture, mode, here, error] : {std::tuple(kCaptureGlobal, kCaptureThreadLocal, false, 0),
                                                   {kCaptureGlobal, kCaptureRelaxed, false, 0},
                                                   {kCaptureGlobal, kCaptureRelaxed, true, 0},
                                                   {kCaptureGlobal, kCaptureGlobal, false, static_cast<int>(kCaptureUnsupported)},
                                                   {kCaptureThreadLocal, kCaptureGlobal, false, 0},
                                                   {kCaptureThreadLocal, kCaptureGlobal, true, static_cast<int>(kCaptureUnsupported)}}) {
    REQUIRE(cuStreamBeginCapture_v2(stream, capture) == 0);
    int status = 0;
    CHECK(cuStreamIsCapturing(stream, &status) == 0);
    CHECK(status == 1);
    CHECK(allocates(mode, here) == error);
    CHECK(end_capture(stream) == (error ? static_cast<int>(kCaptureInvalidated) : 0));
  }
  REQUIRE(cuStreamBeginCapture_v2(stream, kCaptureGlobal) == 0);
  CHECK(cuEventQuery(event) == kCaptureUnsupported);
  CHECK(end_capture(stream) == kCaptureInvalidated);
}
