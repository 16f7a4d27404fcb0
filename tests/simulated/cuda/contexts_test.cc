#include "harness.h"

TEST_CASE("contexts: each thread has a stack of its own, and without one nothing works") {
  Gpu gpu;
  CUdeviceptr address = 0;
  CUcontext current = &current;
  std::thread([&] {
    CHECK(cuCtxGetCurrent(&current) == 0);
    CHECK(cuMemAlloc_v2(&address, 8) == kInvalidContext);
    CHECK(cuCtxPopCurrent_v2(nullptr) == kInvalidContext);
    CHECK(simcuda_current_device() == -1);
  }).join();
  CHECK(current == nullptr);
  CHECK(simcuda_current_device() == 0);
  CHECK(cuCtxGetCurrent(&current) == 0);
  CHECK(current == gpu.context);
}

TEST_CASE("contexts: push and pop nest, set replaces") {
  Gpu gpu;
  CUcontext other = nullptr, current = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == 0);
  CHECK(cuCtxPushCurrent_v2(other) == 0);
  CHECK(simcuda_current_device() == 1);
  CHECK(cuCtxPopCurrent_v2(&current) == 0);
  CHECK(current == other);
  CHECK(simcuda_current_device() == 0);
  CHECK(cuCtxSetCurrent(other) == 0);
  CHECK(simcuda_current_device() == 1);
  CHECK(cuCtxSetCurrent(gpu.context) == 0);
  CHECK(cuDevicePrimaryCtxRelease_v2(1) == 0);
}

TEST_CASE("contexts: the primary one is counted, and gone with the last release") {
  Gpu gpu;
  CUcontext first = nullptr, second = nullptr;
  unsigned flags = 7;
  int active = 1;
  CHECK(cuDevicePrimaryCtxGetState(1, &flags, &active) == 0);
  CHECK(active == 0);
  REQUIRE(cuDevicePrimaryCtxRetain(&first, 1) == 0);
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == 0);
  CHECK(first == second);
  CHECK(cuDevicePrimaryCtxRelease_v2(1) == 0);
  CHECK(cuCtxPushCurrent_v2(first) == 0);
  CHECK(cuCtxPopCurrent_v2(nullptr) == 0);
  CHECK(cuDevicePrimaryCtxRelease_v2(1) == 0);
  CHECK(cuCtxPushCurrent_v2(first) == kInvalidContext);
  CHECK(cuDevicePrimaryCtxRelease_v2(1) == kInvalidContext);
}

TEST_CASE("contexts: an event of one is none of another's stream") {
  Gpu gpu;
  CUevent event = gpu.event();
  {
    Gpu other(1);
    CUstream stream = other.stream();
    CHECK(cuEventRecord(event, stream) == kInvalidHandle);
    CHECK(cuStreamWaitEvent(stream, event, 0) == 0);
    CUcontext context = nullptr;
    CHECK(cuStreamGetCtx(stream, &context) == 0);
    CHECK(context == other.context);
    CHECK(cuStreamGetCtx(nullptr, &context) == 0);
    CHECK(context == other.context);
  }
  cuEventDestroy_v2(event);
}

TEST_CASE("devices: numbers, names and attributes") {
  Gpu gpu;
  int count = 0, value = 0;
  CHECK(cuDeviceGetCount(&count) == 0);
  CHECK(count == 2);
  CUdevice device = -1;
  CHECK(cuDeviceGet(&device, 2) == kInvalidDevice);
  CHECK(cuDeviceGet(&device, 1) == 0);
  char bus[16];
  CHECK(cuDeviceGetPCIBusId(bus, sizeof bus, 1) == 0);
  CHECK(std::string(bus) == "0000:11:00.0");
  CHECK(cuDeviceGetAttribute(&value, 33, 1) == 0);
  CHECK(value == 0x11);
  CHECK(cuDeviceGetAttribute(&value, 75, 1) == 0);
  CHECK(value == 9);
  CHECK(cuDeviceGetAttribute(&value, 9999, 1) == kInvalidValue);
  CUuuid a, b;
  CHECK(cuDeviceGetUuid_v2(&a, 0) == 0);
  CHECK(cuDeviceGetUuid_v2(&b, 1) == 0);
  CHECK(std::memcmp(&a, &b, sizeof a) != 0);
  CHECK(std::strlen(simcuda_uuid(0)) == 32);
  const char* name = nullptr;
  CHECK(cuGetErrorName(700, &name) == 0);
  CHECK(std::string(name) == "CUDA_ERROR_ILLEGAL_ADDRESS");
  CHECK(cuGetErrorString(54321, &name) == kInvalidValue);
  CHECK(name == nullptr);
}
