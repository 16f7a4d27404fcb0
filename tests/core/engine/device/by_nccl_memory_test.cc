#include "engine/device/by_nccl_memory.h"

#include <doctest/doctest.h>

#include "devices/cuda/device.h"
#include "engine/device/gpu.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("blocks are kept for the next one; where the device has no memory left, what lies unused goes first, then it is the host's") {
  Gpu gpu(0);
  std::shared_ptr<Device> device;
  REQUIRE(open_cuda_device(HVD_SIMULATED_DIR "/libcuda.so.1", 0, &device).ok());
  const Device::Turn turn(*device);
  size_t free = 0, total = 0;
  gpu.memory_left(&free, &total);
  const auto limit = [](size_t bytes) { simulated<int (*)(const char*, int64_t)>("simcuda_set")("memory", static_cast<int64_t>(bytes)); };
  {
    const auto pool = std::make_shared<GpuMemory>(device);
    std::shared_ptr<GpuMemory::Block> a, b;
    REQUIRE(pool->take(1 << 20, &a).ok());
    const std::byte* first = a->data();
    a.reset();
    REQUIRE(pool->take((1 << 20) - 5, &a).ok());
    CHECK(a->data() == first);
    a.reset();
    limit(total - free + (3 << 20));  // the first one and a half more
    REQUIRE(pool->take(5 << 19, &b).ok());
    CHECK(pool->pinned() == 0);
    REQUIRE(pool->take(1 << 20, &a).ok());
    CHECK(pool->pinned() > 0);
    gpu.write(a->data(), std::vector<std::byte>(100, std::byte{1}));
    CHECK(gpu.read(a->data(), 100)[99] == std::byte{1});
  }
  limit(total);
  size_t left = 0;
  gpu.memory_left(&left, &total);
  CHECK(left == free);
}

TEST_CASE("sizes that grow leave little behind, and a block serves for less") {
  Gpu gpu(0);
  std::shared_ptr<Device> device;
  REQUIRE(open_cuda_device(HVD_SIMULATED_DIR "/libcuda.so.1", 0, &device).ok());
  const Device::Turn turn(*device);
  size_t before = 0, after = 0, total = 0;
  gpu.memory_left(&before, &total);
  const auto pool = std::make_shared<GpuMemory>(device);
  std::shared_ptr<GpuMemory::Block> block;
  constexpr size_t kMost = 64 << 20;
  for (size_t bytes = 1 << 20; bytes <= kMost; bytes += bytes / 8) {
    block.reset();
    REQUIRE(pool->take(bytes, &block).ok());
  }
  const std::byte* last = block->data();
  block.reset();
  gpu.memory_left(&after, &total);
  CHECK(before - after < 5 * kMost / 2);
  REQUIRE(pool->take(40 << 20, &block).ok());
  CHECK(block->data() == last);
  REQUIRE(pool->take(40 << 20, &block).ok());  // that one is in use
  CHECK(block->data() != last);
}
