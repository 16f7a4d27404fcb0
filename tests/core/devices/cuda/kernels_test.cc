// The device kernels as loaded and launched by the engine, over the simulated driver.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <vector>

#include "contains.h"
#include "devices/cuda/device.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

const std::string driver = HVD_SIMULATED_DIR "/libcuda.so.1";
const bool kernels_for_the_host = ::setenv("SIMCUDA_KERNELS", HVD_SIMULATED_DIR "/libhvd_kernels_host.so", 1) == 0;

template <class Function>
Function simulated(const char* name) {
  static void* const library = ::dlopen(driver.c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  return reinterpret_cast<Function>(::dlsym(library, name));
}
uint64_t calls(const char* name) { return simulated<uint64_t (*)(const char*)>("simcuda_calls")(name); }

struct Knob {
  Knob(const char* name, int64_t value, int64_t otherwise) : name_(name), otherwise_(otherwise) { set(value); }
  ~Knob() { set(otherwise_); }
  void set(int64_t value) const { REQUIRE(simulated<int (*)(const char*, int64_t)>("simcuda_set")(name_, value) == 0); }
  const char* name_;
  int64_t otherwise_;
};

std::shared_ptr<Device> device() {
  std::shared_ptr<Device> out;
  const Status s = open_cuda_device(driver, 0, &out);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return out;
}

}  // namespace

TEST_CASE("kernels are loaded once, and all of them before the first is used") {
  const auto gpu = device();
  const Device::Turn turn(*gpu);
  CHECK(gpu->multiprocessors() == 4);
  const uint64_t before = calls("cuModuleLoadDataEx");
  for (int i = 0; i < 2; ++i) {
    const Status s = gpu->load_kernels();
    REQUIRE_MESSAGE(s.ok(), s.message());
  }
  CHECK(calls("cuModuleLoadDataEx") == before + 1);
  Device::Stream stream = nullptr;
  REQUIRE(gpu->make_stream(&stream).ok());
  const Knob collected("collect", 1, 0), watch("watch", 1, 0);  // a call that may wait for the device is an error
  const std::vector<std::byte> zeros(sizeof(kernels::PackParameters));
  for (size_t i = 0; i < kernels::all().size(); ++i) CHECK(gpu->launch(i, zeros.data(), {1, 256}, stream).ok());
  CHECK(std::string(simulated<const char* (*)()>("simcuda_violations")()) == "");
}

TEST_CASE("kernels that cannot be loaded: the error names the cause and what to do, again and again") {
  const auto why = [] {
    const auto gpu = device();
    const Device::Turn turn(*gpu);
    const std::string first = gpu->load_kernels().message();
    CHECK(first == gpu->load_kernels().message());
    return first;
  };
  const auto error_of = [&](const char* knob, int64_t value, int64_t otherwise) {
    const Knob changed(knob, value, otherwise);
    return why();
  };
  CHECK(contains(error_of("jit", 0, 1), "CUDA error 221"));
  CHECK(contains(error_of("jit", 0, 1), "libnvidia-ptxjitcompiler.so.1"));
  CHECK(contains(error_of("version", 12000, 13000), "CUDA error 222"));
  CHECK(contains(error_of("version", 12000, 13000), "530 or newer is needed"));
  CHECK(contains(error_of("capability", 60, 90), "compute capability 7.0"));
  CHECK(why() == "");
}
