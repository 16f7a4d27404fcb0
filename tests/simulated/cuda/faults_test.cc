#include <dlfcn.h>

#include "processes.h"

namespace {

int run(std::vector<std::string> words, std::vector<std::string> environment, std::string* output = nullptr) {
  Process process(std::move(words), std::move(environment));
  const int status = process.end();
  if (output) *output = process.output;
  return status;
}

}  // namespace

TEST_CASE("faults: what cuInit says, and what CUDA_VISIBLE_DEVICES leaves") {
  CHECK(run({"init", "0"}, {}) == 0);
  CHECK(run({"init", "802"}, {"SIMCUDA_INIT=802"}) == 0);
  CHECK(run({"init", "100"}, {"SIMCUDA_DEVICES=0"}) == 0);
  CHECK(run({"init", "100"}, {"CUDA_VISIBLE_DEVICES="}) == 0);
  CHECK(run({"visible"}, {"SIMCUDA_DEVICES=4", "CUDA_VISIBLE_DEVICES=2"}) == 0);
}

TEST_CASE("faults: forked, after the exit, after a sticky error, and what is left behind") {
  CHECK(run({"forked"}, {}) == 0);
  CHECK(run({"after_exit"}, {}) == 0);
  CHECK(run({"tidy"}, {"SIMCUDA_LEAKS=1"}) == 0);
  CHECK(run({"faulty"}, {"SIMCUDA_LEAKS=1"}) == 0);
  std::string output;
  CHECK(WTERMSIG(run({"leaks"}, {"SIMCUDA_LEAKS=1"}, &output)) == SIGABRT);
  CHECK(output.find("left behind") != std::string::npos);
  CHECK(output.find("of 8 bytes") != std::string::npos);
}

TEST_CASE("faults: the host must not touch device memory, and nobody calls an old form") {
  CHECK(run({"touch"}, {"ASAN_OPTIONS=handle_segv=0", "TSAN_OPTIONS=handle_segv=0"}) == SIGSEGV);
  std::string output;
  CHECK(WTERMSIG(run({"trap"}, {}, &output)) == SIGABRT);
  CHECK(output.find("cuMemAlloc was called: that is an old form") != std::string::npos);
}

TEST_CASE("faults: an older driver lacks symbols, ours has them all in the right form") {
  void* now = dlopen(SIMCUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  void* old = dlopen(SIMCUDA_OLD_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(now != nullptr);
  REQUIRE(old != nullptr);
  CHECK(dlsym(now, "cuDeviceGetUuid_v2") != nullptr);
  CHECK(dlsym(old, "cuDeviceGetUuid_v2") == nullptr);
  CHECK(dlsym(old, "cuMemAlloc_v2") != nullptr);
  for (const char* name : {"cuMemAlloc_v3", "cuInit_v2", "cuEventRecord_v2", "cuStreamEndCapture_v2"}) CHECK(dlsym(now, name) == nullptr);
}

TEST_CASE("faults: calls that may wait for the device do so by chance, and are violations while watched") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUdeviceptr memory = 0;
  {
    Set chance("sync_chance", 100);
    Gate gate(stream);
    std::atomic<bool> returned{false};
    std::thread allocates([&] {
      cuCtxPushCurrent_v2(gpu.context);
      CHECK(cuMemAlloc_v2(&memory, 8) == 0);
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(!returned);
    gate.open = true;
    allocates.join();
  }
  Set watch("watch", 1);
  CHECK(cuMemFree_v2(memory) == 0);
  CHECK(complained("cuMemFree_v2 may wait for the device"));
}

TEST_CASE("faults: a call that waits for too long says what the streams do") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUevent event = gpu.event();
  Set soon("hang_ms", 10, 120000);
  Gate gate(stream);
  CHECK(cuEventRecord(event, stream) == 0);
  std::thread lets_go([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    gate.open = true;
  });
  CHECK(cuEventSynchronize(event) == 0);
  lets_go.join();
  CHECK(complained("waits with external work, 1 behind it"));
}
