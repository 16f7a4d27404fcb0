#include <doctest/doctest.h>

#include "devices/cuda/device.h"
#include "engine/device/gpu.h"
#include "engine/device/nccl_sets.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// The device, as the engine uses it, and a program's GPU on it; `free` of `total` bytes are free at first.
struct Bench {
  Gpu gpu{0};
  std::shared_ptr<Device> device = [] {
    std::shared_ptr<Device> opened;
    REQUIRE(open_cuda_device(HVD_SIMULATED_DIR "/libcuda.so.1", 0, &opened).ok());
    return opened;
  }();
  const Device::Turn turn{*device};
  size_t free = 0, total = 0;

  Bench() { gpu.memory_left(&free, &total); }
  size_t left() {
    size_t now = 0, all = 0;
    gpu.memory_left(&now, &all);
    return now;
  }
  // No more than `bytes` beyond what was in use at first.
  void leave(size_t bytes) { set_knob("memory", static_cast<int64_t>(total - free + bytes)); }
};

}  // namespace

TEST_CASE("blocks are kept for the next one; where the device has no memory left, a larger one serves, then it is the host's") {
  Bench bench;
  {
    const auto pool = std::make_shared<GpuMemory>(bench.device);
    std::shared_ptr<GpuMemory::Block> a, b;
    REQUIRE(pool->take(1 << 20, &a).ok());
    const std::byte* first = a->data();
    a.reset();
    REQUIRE(pool->take((1 << 20) - 5, &a).ok());
    CHECK(a->data() == first);
    a.reset();
    bench.leave(1 << 20);
    REQUIRE(pool->take(64 << 10, &b).ok());
    CHECK(b->data() == first);
    CHECK(pool->pinned() == 0);
    REQUIRE(pool->take(1 << 20, &a).ok());
    CHECK(pool->pinned() > 0);
    bench.gpu.write(a->data(), std::vector<std::byte>(100, std::byte{1}));
    CHECK(bench.gpu.read(a->data(), 100)[99] == std::byte{1});
  }
  bench.leave(bench.free);
  CHECK(bench.left() == bench.free);
}

TEST_CASE("short of memory on the device: no more than is asked for, then the host's with one warning") {
  Bench bench;
  std::vector<std::string> lines;
  {
    const auto pool = std::make_shared<GpuMemory>(bench.device, [&lines](LogLevel level, const std::string& text) {
      lines.push_back(text + std::to_string(static_cast<int>(level)));
    });
    bench.leave(11 << 20);  // the next block would be 12 MiB
    std::shared_ptr<GpuMemory::Block> a, b, c;
    REQUIRE(pool->take(10 << 20, &a).ok());
    CHECK(pool->pinned() == 0);
    CHECK(lines.empty());
    REQUIRE(pool->take(10 << 20, &b).ok());
    CHECK(pool->pinned() == 10 << 20);
    REQUIRE(pool->take(10 << 20, &c).ok());
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].find("CUDA GPU 0 (Simulated GPU 0) has no memory left for NCCL's buffers") == 0);
    CHECK(lines[0].back() == std::to_string(static_cast<int>(LogLevel::warning))[0]);
  }
  bench.leave(bench.free);
}
