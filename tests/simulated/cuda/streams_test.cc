#include "harness.h"

namespace {

int query(CUstream stream) { return cuStreamQuery(stream); }

}  // namespace

TEST_CASE("streams: nothing runs at the call, and the order is that of the calls") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  std::vector<int> order;
  struct Step {
    std::vector<int>* order;
    int number;
  };
  std::vector<Step> steps;
  for (int i = 0; i < 50; ++i) steps.push_back({&order, i});
  {
    Gate gate(stream);
    for (Step& step : steps)
      simcuda_enqueue(stream, [](void* at) {
        auto* step = static_cast<Step*>(at);
        step->order->push_back(step->number);
      }, &step, nullptr);
    CHECK(query(stream) == kNotReady);
    CHECK(order.empty());
    gate.open = true;
    gpu.finish(stream);
  }
  CHECK(query(stream) == 0);
  REQUIRE(order.size() == 50);
  for (int i = 0; i < 50; ++i) CHECK(order[i] == i);
}

TEST_CASE("streams: the legacy stream waits for blocking ones and they for it, others do not") {
  Gpu gpu;
  CUstream blocking = gpu.stream(0), free = gpu.stream(), legacy = nullptr, also_legacy = reinterpret_cast<CUstream>(1);
  CUdeviceptr memory = gpu.memory(3);
  {
    Gate gate(blocking);
    CHECK(cuMemsetD8Async(memory, 1, 1, legacy) == 0);
    CHECK(cuMemsetD8Async(memory + 1, 1, 1, free) == 0);
    gpu.finish(free);  // would hang if it waited
    CHECK(query(also_legacy) == kNotReady);
    gate.open = true;
    gpu.finish(legacy);
  }
  {
    Gate gate(legacy);
    CHECK(cuMemsetD8Async(memory + 2, 1, 1, blocking) == 0);
    gpu.finish(free);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(query(blocking) == kNotReady);
    gate.open = true;
    gpu.finish(blocking);
  }
  cuMemFree_v2(memory);
}

TEST_CASE("streams: handle 2 is the calling thread's own") {
  Gpu gpu;
  CUstream mine = reinterpret_cast<CUstream>(2);
  Gate gate(mine);
  std::thread([&] {
    cuCtxPushCurrent_v2(gpu.context);
    CHECK(query(mine) == 0);
  }).join();
  CHECK(query(mine) == kNotReady);
  gate.open = true;
  gpu.finish(mine);
}

TEST_CASE("streams: a destroyed one finishes its work and is no handle any more") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  CUevent event = gpu.event();
  Gate gate(stream);
  CHECK(cuEventRecord(event, stream) == 0);
  CHECK(cuStreamDestroy_v2(stream) == 0);
  CHECK(cuEventRecord(event, stream) == kInvalidHandle);
  CHECK(cuEventQuery(event) == kNotReady);
  gate.open = true;
  CHECK(cuEventSynchronize(event) == 0);
  cuEventDestroy_v2(event);
}

TEST_CASE("races: use without a wait is reported however the threads run, and with one it is not") {
  Gpu gpu;
  CUstream a = gpu.stream(), b = gpu.stream();
  CUevent event = gpu.event();
  CUdeviceptr from = gpu.memory(64), to = gpu.memory(64);
  CHECK(cuMemsetD8Async(from, 1, 64, a) == 0);
  CHECK(cuEventRecord(event, a) == 0);
  CHECK(cuStreamWaitEvent(b, event, 0) == 0);
  CHECK(cuMemcpyDtoDAsync_v2(to, from, 64, b) == 0);
  gpu.finish(b);
  CHECK(std::string(simcuda_violations()) == "");
  CHECK(cuMemsetD8Async(to + 60, 2, 4, a) == 0);  // while b's copy may still write there, for all that stream a knows
  gpu.finish(a);
  CHECK(std::string(simcuda_violations()) == "");  // but the host had waited for b
  CHECK(cuMemsetD8Async(from, 1, 64, a) == 0);
  gpu.pass(a);
  CHECK(cuMemcpyDtoDAsync_v2(to, from, 64, b) == 0);
  gpu.finish(a);
  gpu.finish(b);
  CHECK(complained("is not ordered after"));
  cuMemFree_v2(from);
  cuMemFree_v2(to);
  cuEventDestroy_v2(event);
}
