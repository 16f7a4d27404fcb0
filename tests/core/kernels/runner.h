// Where the tested kernels run: on the host, compiled by the host's compiler (tests/simulated/kernels), or
// with HVD_KERNELS_DRIVER=libcuda.so.1 on that driver's first device, from the PTX in the library. The driver
// may be simulated.
#pragma once
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/launch.h"

namespace hvd::testing {

// Memory for both host and kernels, which may see it at different addresses. All pieces are released
// together.
class Runner {
 public:
  virtual ~Runner() = default;
  virtual std::byte* take(size_t bytes) = 0;  // at a multiple of 16
  virtual void give_back(std::byte* piece) = 0;
  virtual uint64_t address(const std::byte* p) const = 0;
  virtual void launch(size_t kernel, kernels::Geometry geometry, const void* parameters) = 0;
  virtual int multiprocessors() const = 0;
};

inline void* host_symbol(const std::string& name) {
  static void* const library = dlopen(HVD_KERNELS_HOST, RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library, std::string(library ? "" : dlerror()));
  void* const symbol = dlsym(library, name.c_str());
  REQUIRE_MESSAGE(symbol, name);
  return symbol;
}

// Separate allocations, so that a sanitizer detects accesses beyond them.
class OnHost : public Runner {
 public:
  std::byte* take(size_t bytes) override { return static_cast<std::byte*>(malloc(bytes)); }
  void give_back(std::byte* piece) override { free(piece); }
  uint64_t address(const std::byte* p) const override { return reinterpret_cast<uint64_t>(p); }
  void launch(size_t kernel, kernels::Geometry geometry, const void* parameters) override {
    using HostKernel = void (*)(const unsigned grid[3], const unsigned block[3], const void* parameters, void* (*at)(uint64_t, size_t));
    const unsigned grid[3] = {geometry.blocks, 1, 1}, block[3] = {geometry.threads, 1, 1};
    auto same = [](uint64_t address, size_t) { return reinterpret_cast<void*>(address); };
    const std::string name = std::string("hvd_kernel_") + kernels::all()[kernel].name;
    reinterpret_cast<HostKernel>(host_symbol(name))(grid, block, parameters, same);
  }
  int multiprocessors() const override { return 4; }
};

// One area of pinned memory, copied to the device before a launch and back after it.
class OnDevice : public Runner {
 public:
  explicit OnDevice(const char* driver) : library_(dlopen(driver, RTLD_NOW | RTLD_LOCAL)) {
    REQUIRE_MESSAGE(library_, std::string(library_ ? "" : dlerror()));
    int device = 0;
    void* context = nullptr;
    void* host = nullptr;
    call<unsigned>("cuInit", 0);
    call<int*, int>("cuDeviceGet", &device, 0);
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, device);
    call<void*>("cuCtxPushCurrent_v2", context);
    call<int*, int, int>("cuDeviceGetAttribute", &multiprocessors_, 16, device);
    call<void**, unsigned, int>("cuStreamCreateWithPriority", &stream_, 1, 0);
    call<void**, unsigned>("cuEventCreate", &event_, 2);
    call<void**, size_t>("cuMemAllocHost_v2", &host, kBytes);
    call<uint64_t*, size_t>("cuMemAlloc_v2", &device_, kBytes);
    host_ = static_cast<std::byte*>(host);
    std::vector<char> log(1 << 16);
    int options[] = {5, 6};  // the buffer for errors, its size
    void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
    void* module = nullptr;
    const int loaded =
        symbol<void**, const void*, unsigned, int*, void**>("cuModuleLoadDataEx")(&module, kernels::kPtx, 2, options, values);
    REQUIRE_MESSAGE(loaded == 0, loaded << " " << log.data());
    for (const kernels::Kernel& k : kernels::all()) {
      void* function = nullptr;
      call<void**, void*, const char*>("cuModuleGetFunction", &function, module, k.name);
      functions_.push_back(function);
    }
  }
  std::byte* take(size_t bytes) override {
    std::byte* const piece = host_ + used_;
    used_ += (bytes + 15) / 16 * 16;
    REQUIRE(used_ <= kBytes);
    ++lent_;
    return piece;
  }
  void give_back(std::byte*) override {
    if (--lent_ == 0) used_ = 0;
  }
  uint64_t address(const std::byte* p) const override { return device_ + static_cast<uint64_t>(p - host_); }
  void launch(size_t kernel, kernels::Geometry geometry, const void* parameters) override {
    void* arguments[] = {const_cast<void*>(parameters)};
    if (used_ > 0) call<uint64_t, const void*, size_t, void*>("cuMemcpyHtoDAsync_v2", device_, host_, used_, stream_);
    call<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**>(
        "cuLaunchKernel", functions_[kernel], geometry.blocks, 1, 1, geometry.threads, 1, 1, 0, stream_, arguments, nullptr);
    if (used_ > 0) call<void*, uint64_t, size_t, void*>("cuMemcpyDtoHAsync_v2", host_, device_, used_, stream_);
    call<void*, void*>("cuEventRecord", event_, stream_);
    call<void*>("cuEventSynchronize", event_);
  }
  int multiprocessors() const override { return multiprocessors_; }

 private:
  static constexpr size_t kBytes = 64 << 20;
  template <class... Arguments>
  auto symbol(const char* name) -> int (*)(Arguments...) {
    void* const found = dlsym(library_, name);
    REQUIRE_MESSAGE(found, name);
    return reinterpret_cast<int (*)(Arguments...)>(found);
  }
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) {
    const int result = symbol<Arguments...>(name)(arguments...);
    REQUIRE_MESSAGE(result == 0, name << " gave " << result);
  }

  void* library_;
  void* stream_ = nullptr;
  void* event_ = nullptr;
  std::byte* host_ = nullptr;
  uint64_t device_ = 0;
  size_t used_ = 0, lent_ = 0;
  int multiprocessors_ = 0;
  std::vector<void*> functions_;
};

// The process's runner. It is never destroyed: a driver may end before static objects do.
inline Runner& runner() {
  static Runner* const chosen = [] {
    const char* driver = getenv("HVD_KERNELS_DRIVER");
    return driver ? static_cast<Runner*>(new OnDevice(driver)) : new OnHost;
  }();
  return *chosen;
}

}  // namespace hvd::testing
