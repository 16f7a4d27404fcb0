#include "harness.h"

TEST_CASE("copies: of all kinds, with the bytes of the moment at which they run") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUdeviceptr a = gpu.memory(1000), b = gpu.memory(1000);
  char* host = gpu.pinned<char>(3000);
  std::memset(host, 1, 1000);
  {
    Gate gate(stream);
    CHECK(cuMemcpyHtoDAsync_v2(a, host, 1000, stream) == 0);
    CHECK(cuMemcpyDtoDAsync_v2(b + 10, a + 20, 900, stream) == 0);
    CHECK(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(host) + 1000, b, 1000, stream) == 0);
    CHECK(cuMemsetD8Async(a, 9, 500, stream) == 0);
    CHECK(cuMemcpyDtoHAsync_v2(host + 2000, a, 1000, stream) == 0);
    std::memset(host, 2, 1000);  // pinned memory is read when the copy runs
    gate.open = true;
    gpu.finish(stream);
  }
  CHECK(host[1000 + 10] == 2);
  CHECK(host[1000 + 909] == 2);
  CHECK(static_cast<unsigned char>(host[1000 + 910]) == 0xCB);  // what fresh memory contains
  CHECK(host[2000] == 9);
  CHECK(host[2000 + 500] == 2);
  CHECK(cuMemcpyHtoDAsync_v2(reinterpret_cast<CUdeviceptr>(host), host, 8, stream) == 0);  // unified addresses: pinned is known
  CHECK(cuMemcpyDtoDAsync_v2(a, reinterpret_cast<CUdeviceptr>(&gpu), 8, stream) == kInvalidValue);
  CHECK(cuMemcpyDtoDAsync_v2(a + 999, b, 2, stream) == kInvalidValue);
  gpu.finish(stream);
  cuMemFree_v2(a);
  cuMemFree_v2(b);
  cuMemFreeHost(host);
}

TEST_CASE("copies: pageable memory is taken at the call when it is small, and makes the host wait else") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUdeviceptr memory = gpu.memory(1 << 20);
  std::vector<char> small(100, 1), back(100), large(1 << 20, 3);
  {
    Gate gate(stream);
    CHECK(cuMemcpyHtoDAsync_v2(memory, small.data(), 100, stream) == 0);
    CHECK(cuStreamQuery(stream) == kNotReady);
    std::memset(small.data(), 2, 100);
    gate.open = true;
    CHECK(cuMemcpyDtoHAsync_v2(back.data(), memory, 100, stream) == 0);
    CHECK(back[99] == 1);
  }
  {
    Gate gate(stream);
    std::atomic<bool> returned{false};
    std::thread copies([&] {
      cuCtxPushCurrent_v2(gpu.context);
      CHECK(cuMemcpyHtoDAsync_v2(memory, large.data(), large.size(), stream) == 0);
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(!returned);
    gate.open = true;
    copies.join();
  }
  {
    Set watch("watch", 1);
    CHECK(cuMemcpyDtoHAsync_v2(back.data(), memory, 100, stream) == 0);
  }
  CHECK(complained("makes the host wait"));
  CHECK(back[5] == 3);
  cuMemFree_v2(memory);
}
