// Allreduces of GPU tensors by NCCL within hosts and the engine's links between them; ranks are threads on
// simulated hosts.
#include "engine/device/hierarchical_nccl_path.h"

#include <doctest/doctest.h>

#include "engine/device/nccl.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

Request of(DType dtype, const std::string& name, size_t n, ReduceOp op = ReduceOp::sum) {
  Request q = Program::request(Kind::allreduce, name, {static_cast<int64_t>(n)}, dtype);
  q.op = op;
  return q;
}

// Tensors of a step: of one element, of several parts, and some that are fused.
void sums(Program& p, GpuProgram& g, const std::string& step) {
  const std::vector<size_t> lengths{1, 7, 64, 1000, 2200001};
  std::vector<OnGpu> tasks;
  for (size_t n : lengths) {
    tasks.push_back(g.submit(of(DType::float32, "n" + std::to_string(n), n), Program::bytes_of(ramp(n, p.rank))));
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    p.expect(g.values<float>(tasks[i]) == summed(lengths[i], p.size), step + ": " + std::to_string(lengths[i]));
  }
}

}  // namespace

TEST_CASE("inside hosts by NCCL, between them by the engine's links, whatever the length, the type and the reduction") {
  check_on_gpus(4, by_hosts(), [](Program& p, GpuProgram& g) {
    until_by_nccl(p, g);
    for (int step = 0; step < 3; ++step) sums(p, g, "step " + std::to_string(step));
    OnGpu least = g.submit(of(DType::int32, "min", 5, ReduceOp::min), Program::bytes_of(std::vector<int32_t>(5, 10 - p.rank)));
    p.expect(g.values<int32_t>(least) == std::vector<int32_t>(5, 7), "min");
    // 4 times 1/4 of the ranks' values, in 16 bits, after doubling each input.
    Request q = of(DType::bfloat16, "average", 300, ReduceOp::average);
    q.prescale = 2;
    q.postscale = 3;
    OnGpu mean = g.submit(q, Program::bytes_of(std::vector<uint16_t>(300, p.rank % 2 ? 0x4040 : 0x3f80)));  // 3 and 1
    p.expect(g.values<uint16_t>(mean) == std::vector<uint16_t>(300, 0x4140), "average");  // 12
    OnGpu unnamed = g.submit(of(DType::float32, "", 9), Program::bytes_of(ramp(9, p.rank)));
    OnGpu empty = g.submit(of(DType::float32, "empty", 0), {});
    p.expect(g.values<float>(unnamed) == summed(9, 4), "unnamed");
    p.expect(g.finish(empty).ok(), "empty");
    // Operations that this path does not support.
    OnGpu odd = g.submit(of(DType::int16, "int16", 2), Program::bytes_of(std::vector<int16_t>{1, 2}));
    p.expect(g.values<int16_t>(odd) == std::vector<int16_t>{4, 8}, "int16");
    const uint32_t apart = p.add_set({0, 2});
    if (p.rank % 2 == 0) {
      Request s = of(DType::float32, "set", 5);
      s.set = apart;
      OnGpu t = g.submit(s, Program::bytes_of(std::vector<float>(5, static_cast<float>(p.rank))));
      p.expect(g.values<float>(t) == std::vector<float>(5, 2), "a set of one rank a host");
    }
    p.remove_set(apart);
  });
  CHECK(living() == 0);
}

TEST_CASE("an average in 16 bits does not overflow where the sum of a host would") {
  check_on_gpus(4, by_hosts(), [](Program& p, GpuProgram& g) {
    until_by_nccl(p, g);
    const int before = nccl_kernels();
    Request q = of(DType::float16, "large", 300, ReduceOp::average);
    OnGpu t = g.submit(q, Program::bytes_of(std::vector<uint16_t>(300, 0x78e2)));  // 40000
    p.expect(g.values<uint16_t>(t) == std::vector<uint16_t>(300, 0x78e2), "average of what is large");
    p.expect(nccl_kernels() > before, "not by NCCL");
    q.name = "scaled";
    q.prescale = 0.5;
    q.postscale = 2;
    OnGpu s = g.submit(q, Program::bytes_of(std::vector<uint16_t>(300, p.rank < 2 ? 0x78e2 : 0x0000)));
    p.expect(g.values<uint16_t>(s) == std::vector<uint16_t>(300, 0x74e2), "of half of them");  // 20000
  });
}

TEST_CASE("where NCCL cannot connect the hosts it is used inside them") {
  NcclKnob knob("fail", "CommInitRankConfig:1@3");
  Log log;
  Setup setup = by_hosts();
  setup.nccl.by_hosts = false;
  setup.log = log.sink();
  check_on_gpus(4, setup, [](Program& p, GpuProgram& g) {
    until_by_nccl(p, g);
    sums(p, g, "inside");
  });
  CHECK(log.times("NCCL cannot be used") > 0);
  CHECK(living() == 0);
}

TEST_CASE("hosts with different numbers of ranks, and a rank that has joined: by way of the host") {
  Log log;
  Setup setup = by_hosts({0, 0, 1});
  setup.log = log.sink();
  check_on_gpus(3, setup, [](Program& p, GpuProgram& g) {
    for (int i = 0; i < 3; ++i) sums(p, g, "uneven");
  });
  CHECK(log.times("different numbers of ranks") == 3);

  check_on_gpus(4, by_hosts(), [](Program& p, GpuProgram& g) {
    until_by_nccl(p, g);
    for (int i = 0; i <= 3 * p.rank; ++i) {
      OnGpu t = g.submit(of(DType::float32, "j", 300), Program::bytes_of(std::vector<float>(300, 1)));
      const float left = i == 0 ? 4 : i <= 3 ? 3 : i <= 6 ? 2 : 1;
      p.expect(g.values<float>(t) == std::vector<float>(300, left), "sum " + std::to_string(i));
    }
    p.equal(p.last_joined(), 3, "last");
  });
  CHECK(living() == 0);
}

TEST_CASE("an error that NCCL alone notices in what was launched last ends the job, though nothing is under way any more") {
  NcclKnob fail("fail", nullptr);
  {
    check_on_gpus(4, by_hosts(), [&](Program& p, GpuProgram& g) {
      until_by_nccl(p, g);
      g.gpu().wait();
      p.barrier();
      // The third kernel of the hosts' second ranks is the first that collects a result.
      if (p.rank == 0) fail.turn("async:3@1");
      p.barrier();
      OnGpu t = g.submit(of(DType::float32, "x", 50), Program::bytes_of(ramp(50, p.rank)));
      Status s = g.finish(t);
      p.mark();  // another rank may have noticed first and told this one already
      bool there = false;
      for (const Deadline deadline = Deadline::after(10); s.ok() && !there; s = t.op->on_device->completion->reached(&there)) {
        p.expect(!deadline.passed(), "nobody tells");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      // On the other host it may have completed before.
      if (!s.ok()) p.expect(contains(s.message(), "allreduce 'x'") && contains(s.message(), "NCCL error 6"), s.message());
      for (const Deadline deadline = Deadline::after(10); !deadline.passed();) {
        TaskPtr next;
        if (!p.try_submit(Program::request(Kind::barrier, "next"), {}, &next).ok() || !p.finish(*next).ok()) return;
      }
      p.expect(false, "the job goes on");
    });
  }
  CHECK(living() == 0);
}

TEST_CASE("a rank is lost: what waits for it fails on all, and nothing hangs") {
  Setup setup = by_hosts();
  setup.cuttable = true;
  EngineWorld world(4, setup);
  check_on_gpus(world, [&world](Program& p, GpuProgram& g) {
    until_by_nccl(p, g);
    p.mark();
    p.await_marks(4);
    if (p.rank == 3) {
      world.cut(3);
      return;
    }
    for (int i = 0; i < 1000; ++i) {
      OnGpu t;
      const Status s = g.try_submit(of(DType::float32, "x", 5000), Program::bytes_of(ramp(5000, p.rank)), &t);
      if (!s.ok() || !g.finish(t).ok()) return;
    }
    p.expect(false, "rank 3 is not missed");
  });
}
