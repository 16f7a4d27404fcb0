// For tests of the simulated driver: a device that is ready, and the checker's findings.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <string>
#include <thread>

#include "cuda_abi.h"
#include "simcuda.h"

// A knob for the duration of a scope.
struct Set {
  Set(const char* name, int64_t value, int64_t after = 0) : name(name), after(after) { REQUIRE(simcuda_set(name, value) == 0); }
  ~Set() { simcuda_set(name, after); }
  const char* name;
  int64_t after;
};

// The primary context of a device, current on this thread; violations are collected, and none may be left.
struct Gpu {
  explicit Gpu(int device = 0) : device(device) {
    simcuda_set("devices", 2);
    simcuda_set("collect", 1);
    REQUIRE(cuInit(0) == 0);
    REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == 0);
    REQUIRE(cuCtxPushCurrent_v2(context) == 0);
  }
  ~Gpu() {
    CHECK(cuCtxPopCurrent_v2(nullptr) == 0);
    CHECK(cuDevicePrimaryCtxRelease_v2(device) == 0);
    CHECK(std::string(simcuda_violations()) == "");
  }
  CUstream stream(unsigned flags = kStreamNonBlocking) {
    CUstream created = nullptr;
    REQUIRE(cuStreamCreateWithPriority(&created, flags, 0) == 0);
    return created;
  }
  CUevent event(unsigned flags = kEventDisableTiming) {
    CUevent created = nullptr;
    REQUIRE(cuEventCreate(&created, flags) == 0);
    return created;
  }
  CUdeviceptr memory(size_t bytes) {
    CUdeviceptr created = 0;
    REQUIRE(cuMemAlloc_v2(&created, bytes) == 0);
    return created;
  }
  // Waits until all submitted work of the stream is done.
  void finish(CUstream stream) {
    CUevent end = event();
    REQUIRE(cuEventRecord(end, stream) == 0);
    REQUIRE(cuEventSynchronize(end) == 0);
    cuEventDestroy_v2(end);
  }
  // The same without the driver's knowledge: for work that is not ordered, but happens to run in sequence.
  void pass(CUstream stream) {
    std::atomic<bool> passed{false};
    simcuda_enqueue(stream, [](void* passed) { *static_cast<std::atomic<bool>*>(passed) = true; }, &passed, nullptr);
    while (!passed) std::this_thread::yield();
  }
  int device;
  CUcontext context = nullptr;
};

// Work that blocks until it is released, so that later work cannot run first.
struct Gate {
  explicit Gate(CUstream stream) {
    simcuda_enqueue(stream, [](void*) {}, this, [](void* gate) { return static_cast<Gate*>(gate)->open.load() ? 1 : 0; });
  }
  std::atomic<bool> open{false};
};

// True if the sentence is among the violations; clears all violations.
inline bool complained(const char* sentence) {
  const std::string all = simcuda_violations();
  const bool found = all.find(sentence) != std::string::npos;
  if (!found) MESSAGE("violations: " << all);
  return found;
}
