// Failures of NCCL, with the simulated library: lost ranks, communicators that do not form, failing calls,
// asynchronous errors, and lack of memory.
#include <doctest/doctest.h>

#include "engine/device/nccl.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("a rank is lost: NCCL's kernels that wait for it are aborted, and the process can make a job again") {
  for (int round = 0; round < 2; ++round) {
    Setup setup = with_nccl(Layout::one_node);
    {
      check_on_gpus(2, setup, [](Program& p, GpuProgram& g) {
        until_by_nccl(p, g);
        p.barrier();
        if (p.rank == 1) {
          p.engine.shutdown("this test wants it so");
          return;
        }
        // Its kernel, or its negotiation, waits for the rank that has left.
        OnGpu t;
        const Status s = g.try_submit(of_floats(Kind::allreduce, "late", 8), Program::bytes_of(ramp(8, 0)), &t);
        if (s.ok()) p.expect(!g.finish(t).ok(), "no error");
        g.gpu().wait();
      });
    }
    EngineWorld again(2, setup);
    const std::string wrong = run(again, [](Program& p) {
      GpuProgram g(p);
      until_by_nccl(p, g);
    });
    CHECK(wrong == "");
  }
}

TEST_CASE("a communicator that cannot be made leaves everything to the host, on all ranks") {
  const NcclKnob fail("fail", "CommInitRankConfig:1@1");
  check_on_gpus(2, with_nccl(Layout::one_node), [](Program& p, GpuProgram& g) {
    for (int i = 0; i < 300; ++i) {
      OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 8), Program::bytes_of(ramp(8, p.rank)));
      p.expect(g.values<float>(t) == summed(8, 2), "x");
    }
  });
}

namespace {

// Checks the error of a launched operation that waits for the lost rank 1: it names both, and comes soon.
void expect_loss(const Program& p, const OnGpu& task) {
  const auto start = Clock::now();
  bool there = false;
  Status s;
  for (const Deadline deadline = Deadline::after(20); s.ok() && !there; s = task.op->on_device->completion->reached(&there)) {
    p.expect(!deadline.passed(), "its event does not come");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (p.rank != 0) return;
  p.expect(s.code() == Code::peer_lost, "garbage passes for the result");
  p.expect(contains(s.message(), "allreduce '" + task.name + "'") && contains(s.message(), "rank 1 was lost"), s.message());
  constexpr double kWithin = 2, kSlack = 5;  // seconds; the latter for a busy machine
  p.expect(Clock::now() - start < std::chrono::duration<double>(kWithin + kSlack), "its error comes late");
}

}  // namespace

TEST_CASE("a rank is lost: what is launched and waits for it has failed, whatever its event says") {
  Setup setup = with_nccl(Layout::apart);
  setup.cuttable = true;
  NcclKnob hang("hang", nullptr);
  {
    EngineWorld world(2, setup);
    check_on_gpus(world, [&](Program& p, GpuProgram& g) {
      until_by_nccl(p, g);
      p.barrier();
      if (p.rank == 0) hang.turn("1@0");
      p.barrier();
      OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 50), Program::bytes_of(ramp(50, p.rank)));
      p.expect(g.finish(t).ok(), "launched");
      p.mark();
      p.await_marks(2);
      if (p.rank == 0) world.cut(1);
      expect_loss(p, t);
    });
  }
}

TEST_CASE("an error that NCCL alone notices ends the job on all ranks while nobody calls anything") {
  Setup setup = with_nccl(Layout::pairs);
  NcclKnob fail("fail", nullptr);
  {
    EngineWorld world(4, setup);
    check_on_gpus(world, [&](Program& p, GpuProgram& g) {
      until_by_nccl(p, g);
      g.gpu().wait();
      p.barrier();
      if (p.rank == 0) fail.turn("async:1@2");
      p.barrier();
      // Rank 2's data arrive when all ranks have launched it.
      if (p.rank == 2) g.gpu().hold([&world] { return world.marks == 4; });
      OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 50), Program::bytes_of(ramp(50, p.rank)));
      Status s = g.finish(t);
      p.expect(s.ok(), "launched");
      p.mark();
      bool there = false;
      for (const Deadline deadline = Deadline::after(10); s.ok() && !there; s = t.op->on_device->completion->reached(&there)) {
        p.expect(!deadline.passed(), "nobody tells");
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      p.expect(contains(s.message(), "rank 2: CUDA GPU 2") &&
                   contains(s.message(), "allreduce 'x': communication failed with NCCL error 6") &&
                   contains(s.message(), "simulated error of the network"),
               s.message());
      OnGpu next;
      p.expect(!g.try_submit(of_floats(Kind::allreduce, "y", 5), Program::bytes_of(ramp(5, 0)), &next).ok(), "the job goes on");
    });
  }
}

TEST_CASE("a communicator that takes too long: one warning, then all ranks go by way of the host, for good") {
  const NcclKnob slow("creation_ms", "60000");
  Log log;
  Setup setup = with_nccl(Layout::one_node);  // otherwise parts of the set have separate communicators
  setup.log = log.sink();
  setup.nccl.slow = 0.05;
  setup.nccl.patience = 3;  // long enough for heartbeats of a rank on a busy machine
  check_on_gpus(4, setup, [&](Program& p, GpuProgram& g) {
    const auto one = [&] {
      OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 8), Program::bytes_of(ramp(8, p.rank)));
      p.expect(g.values<float>(t) == summed(8, 4), "x");
    };
    for (const Deadline deadline = Deadline::after(60); p.sum("given up", log.times("was not created within") >= 4) < 4; one()) {
      p.expect(!deadline.passed(), "nobody gives up");
    }
    for (int i = 0; i < 5; ++i) one();
  });
  CHECK(log.times("NCCL's communicator for all ranks is not ready after 0 s: waiting for ranks 0, 1, 2, 3. Until then") == 1);
  CHECK(log.times("NCCL is not used for all ranks: its communicator was not created within 3 s") == 4);
  CHECK(log.times("NCCL_SOCKET_IFNAME") == 1);
}

TEST_CASE("a job gives back the memory of the device that it has taken for itself") {
  const auto used = [] {
    size_t free = 0, total = 0;
    Gpu gpu(1);
    gpu.memory_left(&free, &total);
    return total - free;
  };
  // Earlier jobs may still be ending on their own threads.
  for (const Deadline deadline = Deadline::after(20); living() > 0 && !deadline.passed();) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(living() == 0);
  const size_t before = used();
  {
    check_on_gpus(2, with_nccl(Layout::one_node), [](Program& p, GpuProgram& g) {
      until_by_nccl(p, g);
      for (int i = 0; p.rank == 0 && i < 3; ++i) {
        const size_t n = 100000u << i;
        OnGpu t = g.submit(of_floats(Kind::allreduce, "j", n), Program::bytes_of(ramp(n, 0)));
        p.expect(g.values<float>(t) == ramp(n, 0), "alone");
      }
      p.last_joined();
    });
  }
  CHECK(used() == before);
}
