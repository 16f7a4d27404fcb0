// Operations on tensors of GPUs by NCCL, over the simulated driver and the simulated NCCL: ranks are threads, each with a GPU of its own.
#include <doctest/doctest.h>

#include <numeric>

#include "contains.h"
#include "engine/device/nccl.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("once communicators are made, reductions and broadcasts go by NCCL, in order on every rank, with sets as well") {
  for (Layout layout : {Layout::one_node, Layout::pairs}) {
    EngineWorld world(4, with_nccl(layout));
    const std::string wrong = run(world, [](Program& p) {
      GpuProgram g(p);
      until_by_nccl(p, g);
      const uint32_t even = p.add_set({0, 2});
      for (int step = 0; step < 15; ++step) {
        std::vector<OnGpu> tasks;
        for (size_t i = 0; i < 4; ++i) {
          tasks.push_back(g.submit(of_floats(Kind::allreduce, "g" + std::to_string(i), 50 + i), Program::bytes_of(ramp(50 + i, p.rank))));
        }
        Request b = of_floats(Kind::broadcast, "b", 9);
        b.root = 3;
        OnGpu broadcast = g.submit(b, Program::bytes_of(ramp(9, p.rank)), 36);
        Request r = of_floats(Kind::reducescatter, "r", 6);  // the first two ranks get two rows
        const size_t me = static_cast<size_t>(p.rank), rows = me < 2 ? 2 : 1, from = me < 2 ? 2 * me : me + 2;
        OnGpu part = g.submit(r, Program::bytes_of(ramp(6, p.rank)), rows * 4);
        Request gather = Program::request(Kind::allgather, "a", {1}, DType::float32);  // by way of the host
        OnGpu all = g.submit(gather, Program::bytes_of(std::vector<float>{static_cast<float>(p.rank)}));
        if (p.rank % 2 == 0) {
          Request q = of_floats(Kind::allreduce, "s", 5);
          q.set = even;
          OnGpu of_set = g.submit(q, Program::bytes_of(std::vector<float>(5, static_cast<float>(p.rank))));
          p.expect(g.values<float>(of_set) == std::vector<float>(5, 2), "set");
        }
        for (size_t i = 0; i < 4; ++i) p.expect(g.values<float>(tasks[i]) == summed(50 + i, 4), "step " + std::to_string(step));
        p.expect(g.values<float>(broadcast) == ramp(9, 3), "broadcast");
        const std::vector<float> sums = summed(6, 4);
        p.expect(g.values<float>(part) ==
                     std::vector<float>(sums.begin() + static_cast<ptrdiff_t>(from), sums.begin() + static_cast<ptrdiff_t>(from + rows)),
                 "reducescatter");
        p.expect(g.values<float>(all) == std::vector<float>{0, 1, 2, 3}, "allgather");
      }
      p.remove_set(even);
    });
    CHECK(wrong == "");
  }
  CHECK(living() == 0);
}

TEST_CASE("what NCCL cannot do as our arithmetic has it goes by way of the host") {
  EngineWorld world(3, with_nccl(Layout::one_node));
  const std::string wrong = run(world, [](Program& p) {
    GpuProgram g(p);
    until_by_nccl(p, g);
    // A third in bfloat16 is wrong by 0.2%; the host's arithmetic is not.
    Request q = Program::request(Kind::allreduce, "average", {4}, DType::bfloat16);
    q.op = ReduceOp::average;
    const std::vector<uint16_t> threes(4, 0x4040), one_and_a_half(4, 0x3fc0);
    OnGpu t = g.submit(q, Program::bytes_of(threes));
    p.expect(g.values<uint16_t>(t) == threes, "average");
    Request i16 = Program::request(Kind::allreduce, "int16", {2}, DType::int16);
    OnGpu ints = g.submit(i16, Program::bytes_of(std::vector<int16_t>{1, 2}));
    p.expect(g.values<int16_t>(ints) == std::vector<int16_t>{3, 6}, "int16");
    OnGpu adasum = g.submit(of_floats(Kind::allreduce, "average of floats", 4, ReduceOp::average), Program::bytes_of(ramp(4, 1)));
    p.expect(g.values<float>(adasum) == ramp(4, 1), "average of floats");
  });
  CHECK(wrong == "");
}

TEST_CASE("a rank that has joined takes part in NCCL's reductions with zeros") {
  EngineWorld world(3, with_nccl(Layout::one_node));
  const std::string wrong = run(world, [](Program& p) {
    GpuProgram g(p);
    until_by_nccl(p, g);
    for (int i = 0; i <= 4 * p.rank; ++i) {
      std::vector<OnGpu> pair;
      for (size_t n : {size_t{300}, size_t{7}}) {
        pair.push_back(g.submit(of_floats(Kind::allreduce, "j" + std::to_string(n), n), Program::bytes_of(std::vector<float>(n, 1))));
      }
      const float left = i == 0 ? 3 : i <= 4 ? 2 : 1;
      p.expect(g.values<float>(pair[0]) == std::vector<float>(300, left) && g.values<float>(pair[1]) == std::vector<float>(7, left), "sum");
    }
    p.equal(p.last_joined(), 2, "last");
    OnGpu t = g.submit(of_floats(Kind::allreduce, "again", 4), Program::bytes_of(ramp(4, p.rank)));
    p.expect(g.values<float>(t) == summed(4, 3), "together again");
  });
  CHECK(wrong == "");
}

TEST_CASE("ranks without NCCL, and ranks that share a GPU, go by way of the host") {
  for (bool shared : {false, true}) {
    Given given = with_nccl(Layout::one_node);
    if (!shared) given.nccl.library = "/nowhere/libnccl.so.2";
    EngineWorld world(2, given);
    const int before = nccl_kernels();
    const std::string wrong = run(world, [&](Program& p) {
      GpuProgram g(p, shared ? 0 : p.rank);
      for (int i = 0; i < 20; ++i) {
        OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 8), Program::bytes_of(ramp(8, p.rank)));
        p.expect(g.values<float>(t) == summed(8, 2), "x");
      }
    });
    CHECK(wrong == "");
    CHECK(nccl_kernels() == before);
  }
}
