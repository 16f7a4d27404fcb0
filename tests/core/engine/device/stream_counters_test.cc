#include <doctest/doctest.h>

#include <thread>

#include "base/deadline.h"
#include "devices/cuda/device.h"
#include "engine/device/completion.h"
#include "engine/device/gpu.h"
#include "engine/device/ipc_memory.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Two ranks that are threads of this process, each with a stream.
struct Pair {
  std::shared_ptr<Device> device;
  std::shared_ptr<Segment> segment = Segment::in_process({.local_size = 2});
  std::unique_ptr<StreamCounters> words[2];
  Device::Stream streams[2];
  std::shared_ptr<const Completion> last;

  Pair() {
    REQUIRE(open_cuda_device(HVD_SIMULATED_DIR "/libcuda.so.1", 0, &device).ok());
    const Device::Turn turn(*device);
    for (int rank = 0; rank < 2; ++rank) {
      REQUIRE(StreamCounters::open(segment, device, rank, &words[rank]).ok());
      REQUIRE(device->make_stream(&streams[rank]).ok());
    }
  }
  void tell(int rank, size_t word) {
    const Device::Turn turn(*device);
    REQUIRE(words[rank]->tell(word, streams[rank]).ok());
  }
  // Rank 0's stream waits for rank 1.
  void await(size_t word) {
    const Device::Turn turn(*device);
    REQUIRE(words[0]->await(1, word, streams[0]).ok());
    REQUIRE(Completion::record(device, streams[0], &last).ok());
  }
  bool comes(double seconds) const {
    const Deadline deadline = Deadline::after(seconds);
    for (bool there = false;;) {
      REQUIRE(last->passed(&there).ok());
      if (there || deadline.passed()) return there;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
};

}  // namespace

TEST_CASE("a stream waits until another one has come to what was told when the wait was called") {
  Gpu gpu(0);
  Pair pair;
  pair.await(3);  // nothing was reported
  CHECK(pair.comes(10));
  std::atomic<bool> go{false};
  for (int i = 0; i < 5; ++i) {
    go = false;
    {
      const Device::Turn turn(*pair.device);
      simulated<void (*)(void*, void (*)(void*), void*, int (*)(void*))>("simcuda_enqueue")(
          pair.streams[1], [](void*) {}, &go, [](void* open) { return static_cast<std::atomic<bool>*>(open)->load() ? 1 : 0; });
    }
    pair.tell(1, 3);
    pair.await(4);  // another word
    CHECK(pair.comes(10));
    pair.await(3);
    CHECK(!pair.comes(0.02));
    go = true;
    CHECK(pair.comes(10));
  }
}

TEST_CASE("streams that wait for a rank that is lost are released") {
  Gpu gpu(0);
  Pair pair;
  std::atomic<bool> go{false};
  {
    const Device::Turn turn(*pair.device);
    simulated<void (*)(void*, void (*)(void*), void*, int (*)(void*))>("simcuda_enqueue")(
        pair.streams[1], [](void*) {}, &go, [](void* open) { return static_cast<std::atomic<bool>*>(open)->load() ? 1 : 0; });
  }
  pair.tell(1, 0);
  pair.await(0);
  CHECK(!pair.comes(0.02));
  pair.words[0]->release();
  CHECK(pair.comes(10));
  pair.await(0);  // called later
  CHECK(pair.comes(10));
  go = true;
  const Device::Turn turn(*pair.device);
  REQUIRE(Completion::record(pair.device, pair.streams[1], &pair.last).ok());
  CHECK(pair.comes(10));  // it still writes the word
}
