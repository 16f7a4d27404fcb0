// HIP in the place of CUDA's driver, over a simulated libamdhip64: what is found, what is said, and what differs between the two.
#include "devices/hip/driver.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "contains.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

const bool two_gpus = ::setenv("SIMCUDA_DEVICES", "2", 1) == 0;
const std::string old = HVD_SIMULATED_DIR "/hip-old/libamdhip64.so.6";

// As a framework has loaded it before.
template <class Function>
Function of_hip(const char* name) {
  static void* const library = ::dlopen(HVD_SIMULATED_DIR "/libamdhip64.so.6", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  const auto function = reinterpret_cast<Function>(::dlsym(library, name));
  REQUIRE((function != nullptr));
  return function;
}
// Of the driver under it.
template <class Function>
Function simulated(const char* name) {
  static void* const library = ::dlopen(HVD_SIMULATED_DIR "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  return reinterpret_cast<Function>(::dlsym(library, name));
}

std::shared_ptr<Device> device(int ordinal) {
  of_hip<int (*)()>("hipGetLastError");
  std::shared_ptr<Device> out;
  const Status s = open_hip_device(ordinal, &out);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return out;
}

}  // namespace

TEST_CASE("a library that is not there is named, and one that is too old by what it lacks") {
  CudaDriver d;
  const std::string missing[] = {"/nowhere/libamdhip64.so.7", "/nowhere/libamdhip64.so"};
  const Status none = load_hip(missing, &d);
  CHECK(none.code() == Code::invalid_argument);
  CHECK(contains(none.message(), "there is no ROCm GPU to be had: HIP's library cannot be loaded (/nowhere/libamdhip64.so.7: "));
  CHECK(contains(none.message(), "; /nowhere/libamdhip64.so: "));
  const std::string second[] = {"/nowhere/libamdhip64.so.7", old};
  CHECK(load_hip(second, &d).message() == "there is no ROCm GPU to be had: " + old +
                                              " has no function hipThreadExchangeStreamCaptureMode; ROCm is too old, 6.0 is the least");
}

TEST_CASE("a GPU of AMD's says what it is, and names HIP's functions and errors") {
  const auto gpu = device(1);
  CHECK(gpu->kind() == DeviceKind::hip);
  CHECK(gpu->description() == "ROCm GPU 1 (Simulated GPU 1)");
  CHECK(gpu->capability() == 94);
  CHECK(gpu->multiprocessors() == 4);
  CHECK(gpu->uuid() != device(0)->uuid());
  CHECK(device(1) == gpu);
  std::shared_ptr<Device> out;
  CHECK(open_hip_device(7, &out).message() == "ROCm GPU 7 does not exist; this process sees 2 of them");
  const Device::Turn turn(*gpu);
  REQUIRE(turn.status().ok());
  CHECK(contains(gpu->load_kernels().message(), "ROCm GPU 1 (Simulated GPU 1): the engine's kernels are PTX"));
  simulated<int (*)(const char*, int64_t)>("simcuda_set")("fail_alloc", 1);
  void* memory = nullptr;
  CHECK(gpu->allocate(64, &memory).message() == "hipMalloc failed: HIP error 2 (hipErrorOutOfMemory): out of memory");
}

TEST_CASE("a thread has the device it had before, and no error of ours") {
  const auto gpu = device(1);
  int now = -1;
  {
    const Device::Turn turn(*gpu);
    REQUIRE(turn.status().ok());
    of_hip<int (*)(int*)>("hipGetDevice")(&now);
    CHECK(now == 1);
    Device::Stream stream = nullptr;
    Device::Event event = nullptr;
    REQUIRE(gpu->make_stream(&stream).ok());
    REQUIRE(gpu->take_event(&event).ok());
    static std::atomic<bool> go{false};
    simulated<void (*)(void*, void (*)(void*), void*, int (*)(void*))>("simcuda_enqueue")(
        stream, [](void*) {}, nullptr, [](void*) { return static_cast<int>(go.load()); });
    REQUIRE(gpu->record(event, stream).ok());
    bool reached = true;
    CHECK(gpu->reached(event, &reached).ok());
    CHECK_FALSE(reached);
    CHECK(of_hip<int (*)()>("hipGetLastError")() == 0);
    go = true;
    while (!reached) REQUIRE(gpu->reached(event, &reached).ok());
    gpu->give_back(event);
  }
  of_hip<int (*)(int*)>("hipGetDevice")(&now);
  CHECK(now == 0);
}

TEST_CASE("a forked child is refused") {
  const auto gpu = device(0);
  const pid_t child = ::fork();
  if (child == 0) {
    const Device::Turn turn(*gpu);
    std::shared_ptr<Device> out;
    const bool told = contains(turn.status().message(), "ROCm GPU 0 (Simulated GPU 0) belongs to the parent process") &&
                      contains(open_hip_device(1, &out).message(), "forked from one that had used it; start it by 'spawn'");
    ::_exit(told ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}
