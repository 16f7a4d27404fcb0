// Operations on GPU tensors by NCCL, with the simulated driver and NCCL; ranks are threads, each with its own
// GPU.
#include <doctest/doctest.h>

#include <numeric>

#include "contains.h"
#include "engine/device/nccl.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("parts of different lengths are gathered and exchanged by NCCL, into memory of the engine that is used again") {
  for (int size : {2, 3}) {
    check_on_gpus(size, with_nccl(Layout::one_node), [](Program& p, GpuProgram& g) {
      until_by_nccl(p, g);
      p.barrier();
      const uint64_t sent = nccl_calls("Send"), broadcast = nccl_calls("Broadcast");
      p.barrier();
      const auto n = static_cast<size_t>(p.size), me = static_cast<size_t>(p.rank);
      for (size_t step = 0; step < 12; ++step) {
        const size_t rows = step % 3 == 2 ? 0 : 1 + 1000 * step;
        std::vector<float> expected;
        for (size_t r = 0; r < n; ++r) {
          const std::vector<float> part = ramp(2 * (rows + r), static_cast<int>(r));
          expected.insert(expected.end(), part.begin(), part.end());
        }
        Request q = Program::request(Kind::allgather, "a", {static_cast<int64_t>(rows + me), 2}, DType::float32);
        OnGpu all = g.submit(q, Program::bytes_of(ramp(2 * (rows + me), p.rank)));
        // Rank r gets r + step rows from each rank, plus one row more.
        q = Program::request(Kind::alltoall, "x", {}, DType::float32);
        std::vector<float> own;
        for (size_t r = 0; r < n; ++r) {
          q.splits.push_back(static_cast<int64_t>(r + step));
          own.insert(own.end(), r + step, static_cast<float>(10 * me + r));
        }
        q.shape = {static_cast<int64_t>(own.size())};
        OnGpu exchanged = g.submit(q, Program::bytes_of(own));
        p.expect(g.values<float>(all) == expected, "allgather " + std::to_string(step));
        p.expect(all.op->sizes[n - 1] == static_cast<int64_t>(rows + n - 1), "rows");
        std::vector<float> parts;
        for (size_t r = 0; r < n; ++r) parts.insert(parts.end(), me + step, static_cast<float>(10 * r + me));
        p.expect(g.values<float>(exchanged) == parts, "alltoall " + std::to_string(step));
        p.expect(exchanged.op->sizes == std::vector<int64_t>(n, static_cast<int64_t>(me + step)), "received");
      }
      p.expect(nccl_calls("Send") > sent && nccl_calls("Broadcast") > broadcast, "not by NCCL");
    });
  }
}

TEST_CASE("what NCCL would scale with a rounded factor our kernels scale") {
  check_on_gpus(3, with_nccl(Layout::one_node), [](Program& p, GpuProgram& g) {
    until_by_nccl(p, g);
    // A third in bfloat16 is wrong by 0.2%; Horovod's result is exact.
    for (const auto& [type, three] : {std::pair(DType::bfloat16, uint16_t{0x4040}), std::pair(DType::float16, uint16_t{0x4200})}) {
      p.barrier();
      const int before = nccl_kernels();
      p.barrier();
      Request q = Program::request(Kind::allreduce, "average", {5}, type);
      q.op = ReduceOp::average;
      const std::vector<uint16_t> threes(5, three);
      OnGpu t = g.submit(q, Program::bytes_of(threes), 10);
      p.expect(g.values<uint16_t>(t) == threes, "average");
      p.expect(nccl_kernels() > before, "not by NCCL");
    }
    p.barrier();
    const int before = nccl_kernels();
    p.barrier();
    Request q = Program::request(Kind::allreduce, "ints", {3}, DType::int32);
    q.op = ReduceOp::average;
    q.prescale = 2;
    OnGpu ints = g.submit(q, Program::bytes_of(std::vector<int32_t>{1, 2, 4 + p.rank}));
    p.expect(g.values<int32_t>(ints) == std::vector<int32_t>{2, 4, 10}, "int32");
    p.expect(nccl_kernels() == before, "an average of integers by NCCL, where its sum wraps around");
    p.barrier();
    Request scattered = Program::request(Kind::reducescatter, "r", {3}, DType::bfloat16);
    scattered.op = ReduceOp::average;
    OnGpu part = g.submit(scattered, Program::bytes_of(std::vector<uint16_t>(3, 0x4040)), 2);
    p.expect(g.values<uint16_t>(part) == std::vector<uint16_t>{0x4040}, "reducescatter");
    p.expect(nccl_kernels() > before, "not by NCCL");
  });
}

TEST_CASE("what NCCL cannot do goes by way of the host") {
  check_on_gpus(3, with_nccl(Layout::one_node), [](Program& p, GpuProgram& g) {
    until_by_nccl(p, g);
    Request i16 = Program::request(Kind::allreduce, "int16", {2}, DType::int16);
    OnGpu ints = g.submit(i16, Program::bytes_of(std::vector<int16_t>{1, 2}));
    p.expect(g.values<int16_t>(ints) == std::vector<int16_t>{3, 6}, "int16");
    OnGpu average = g.submit(of_floats(Kind::allreduce, "average of floats", 4, ReduceOp::average), Program::bytes_of(ramp(4, 1)));
    p.expect(g.values<float>(average) == ramp(4, 1), "average of floats");
  });
}

TEST_CASE("ranks without NCCL, and ranks that share a GPU, go by way of the host") {
  for (bool shared : {false, true}) {
    Setup setup = with_nccl(Layout::one_node);
    if (!shared) setup.nccl.library = "/nowhere/libnccl.so.2";
    EngineWorld world(2, setup);
    const int before = nccl_kernels();
    CHECK(run(world, [&](Program& p) {
      GpuProgram g(p, shared ? 0 : p.rank);
      for (int i = 0; i < 20; ++i) {
        OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 8), Program::bytes_of(ramp(8, p.rank)));
        p.expect(g.values<float>(t) == summed(8, 2), "x");
      }
    }) == "");
    CHECK(nccl_kernels() == before);
  }
}
