// Computations of a device for the engine, over the simulated driver, compared with the CPU's.
#include "engine/device/compute.h"

#include <doctest/doctest.h>

#include "devices/cuda/device.h"
#include "engine/device/gpu.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

const bool kernels_for_the_host = ::setenv("SIMCUDA_KERNELS", HVD_SIMULATED_DIR "/libhvd_kernels_host.so", 1) == 0;

using Data = std::vector<std::byte>;

void must(const Status& s) { require(s.ok(), s.message()); }

// A program's stream and an engine's device: the engine's work runs after the program's writes and before its
// reads.
struct Bench {
  Gpu gpu{0};
  std::shared_ptr<Device> device;
  std::unique_ptr<Compute> compute;
  Bench() {
    must(open_cuda_device(HVD_SIMULATED_DIR "/libcuda.so.1", 0, &device));
    compute = std::make_unique<Compute>(device);
    const Device::Turn turn(*device);
    must(compute->load());
  }
  Device::Stream stream() { return gpu.stream(); }
  std::byte* put(const Data& data) {
    std::byte* memory = gpu.allocate(data.size());
    gpu.write(memory, data);
    return memory;
  }
};

}  // namespace

// tests/core/kernels shows that kernels have the CPU's bits; this test shows that the right ones are
// launched, with the right parameters.
TEST_CASE("reductions and scaling on a device have the CPU's bits") {
  Bench bench;
  for (DType d : {DType::int16, DType::float32, DType::boolean, DType::bfloat16}) {
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      for (size_t count : {size_t{1}, size_t{3}}) {
        CAPTURE(name_of(d));
        CAPTURE(name_of(op));
        CAPTURE(count);
        constexpr size_t n = 1003, begin = 5, end = 999;
        std::vector<Data> data;
        std::vector<std::byte*> destinations;
        std::vector<const std::byte*> sources, slices;
        for (size_t i = 0; i < count; ++i) data.push_back(numbers(d, n, static_cast<unsigned>(i)));
        for (const Data& some : data) {
          destinations.push_back(bench.put(some));
          sources.push_back(destinations.back());
          slices.push_back(some.data() + begin * size_of(d));
        }
        const Scale scale{0.5, op == ReduceOp::average ? static_cast<int64_t>(count) : 1};
        {
          const Device::Turn turn(*bench.device);
          must(bench.compute->reduce(d, op, sources, destinations, begin, end, scale, bench.stream()));
        }
        Data expected((end - begin) * size_of(d));
        reduce_many(d, op == ReduceOp::average ? ReduceOp::sum : op, expected.data(), slices, end - begin, scale);
        for (size_t i = 0; i < count; ++i) {
          Data all = data[i];
          std::memcpy(all.data() + begin * size_of(d), expected.data(), expected.size());
          CHECK(bench.gpu.read(destinations[i], all.size()) == all);
        }
      }
    }
    const Data data = numbers(d, 301, 9);
    std::byte* memory = bench.put(data);
    {
      const Device::Turn turn(*bench.device);
      must(bench.compute->scale(d, memory, memory, 301, {0.25, 3}, bench.stream()));
    }
    Data expected(data.size());
    scale(d, expected.data(), data.data(), 301, {0.25, 3});
    CHECK(bench.gpu.read(memory, data.size()) == expected);
  }
}

TEST_CASE("tensors are cast on their way where there is a kernel for it") {
  Bench bench;
  const Data data = numbers(DType::float32, 77, 1);
  std::byte* to = bench.gpu.allocate(77 * 2);
  const std::vector<Compute::Move> moves{{bench.put(data), to, 77}};
  {
    const Device::Turn turn(*bench.device);
    must(bench.compute->pack(DType::float32, DType::bfloat16, moves, {0.5, 1}, bench.stream()));
    CHECK_FALSE(bench.compute->pack(DType::float64, DType::bfloat16, moves, {}, bench.stream()).ok());
  }
  Data scaled(data.size()), expected(77 * 2);
  scale(DType::float32, scaled.data(), data.data(), 77, {0.5, 1});
  narrow(DType::bfloat16, expected.data(), reinterpret_cast<const float*>(scaled.data()), 77);
  CHECK(bench.gpu.read(to, expected.size()) == expected);
  CHECK(Compute::casts(DType::float32, DType::bfloat16));
  CHECK_FALSE(Compute::casts(DType::float64, DType::bfloat16));
}
