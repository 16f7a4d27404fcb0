// Failures of ranks that reduce in each other's GPU memory, their messages, and how jobs end, over the
// simulated driver.
#include <doctest/doctest.h>

#include <atomic>

#include "devices/cuda/device.h"
#include "engine/device/ipc.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("that ranks share a GPU is said once for all sets, without NCCL as well, and not where it is meant") {
  for (bool meant : {false, true}) {
    Log log;
    Setup setup = shared(true, &log);
    setup.nccl.sharing_is_meant = meant;
    {
      check_ranks(3, setup, [](Program& p) {
        GpuProgram g(p, p.rank < 2 ? 0 : 1);
        const uint32_t pair = p.add_set({0, 1});
        for (uint32_t set : {uint32_t{0}, pair}) {
          if (set != 0 && p.rank == 2) continue;
          Request q = of_floats(Kind::allreduce, "t" + std::to_string(set), 9);
          q.set = set;
          OnGpu t = g.submit(q, Program::bytes_of(ramp(9, p.rank)));
          p.expect(g.values<float>(t) == summed(9, set == 0 ? 3 : 2), "sum");
        }
      });
    }
    const std::string warning = "warning: ranks 0, 1 share a GPU with each other";
    CHECK_MESSAGE(log.times(warning) == !meant, log.text());
    CHECK_MESSAGE(log.times("share a GPU") == !meant, log.text());
  }
}

TEST_CASE("what cannot be had is named, on every rank alike, and operations go by way of the host") {
  const auto error_of = [](const char* knob, int64_t value, int64_t otherwise) {
    Log log;
    finish_earlier_jobs();
    {
      check_on_gpus(2, shared(true, &log), [&](Program& p, GpuProgram& g) {
        if (p.rank == 0) set_knob(knob, value);
        p.barrier();
        Request q = Program::request(Kind::allreduce, "t", {9}, DType::float32);
        q.op = ReduceOp::sum;
        for (int i = 0; i < 3; ++i) {
          OnGpu t = g.submit(q, Program::bytes_of(std::vector<float>(9, 1)));
          p.expect(g.values<float>(t) == std::vector<float>(9, 2), "sum");
        }
      }, 0);
    }
    set_knob(knob, otherwise);
    return log.text();
  };
  const auto check = [&](const std::string& text, const std::string& part) { CHECK_MESSAGE(contains(text, part), text); };
  check(error_of("jit", 0, 1), "not by CUDA IPC: rank 0: CUDA GPU 0");
  check(error_of("jit", 0, 1), "libnvidia-ptxjitcompiler.so.1");
  check(error_of("no_ipc", 2, 0), "cuIpcGetMemHandle failed");
  check(error_of("no_ipc", 0, 0), "in each other's memory");
}

TEST_CASE("short of memory for the buffers: all ranks take smaller ones, and there is one warning") {
  finish_earlier_jobs();
  Log log;
  Setup setup = shared(true, &log);
  setup.ipc.window = 8 << 20;
  const uint64_t before = launches();
  {
    check_on_gpus(2, setup, [&](Program& p, GpuProgram& g) {
      const size_t n = 5000001;  // several windows of either size
      std::byte* memory = g.gpu().allocate(4 * n);
      g.gpu().write(memory, Program::bytes_of(ramp(n, p.rank)));
      p.barrier();
      if (p.rank == 0) set_knob("fail_alloc", 4);  // see above
      p.barrier();
      const Place place = g.gpu().place();
      OnGpu t;
      require(p.engine.submit(of_floats(Kind::allreduce, "t", n), memory, memory, &t.op, nullptr, &place).ok(), "submit");
      t.out = memory, t.bytes = 4 * n;
      p.expect(g.values<float>(t) == summed(n, 2), "sum");
    }, 0);
  }
  CHECK(launches() > before + 10);
  const std::string warning = "has no memory left for the 16 MiB in which ranks of a host reduce in each other's memory: they take 8 MiB";
  CHECK_MESSAGE(log.times(warning) == 1, log.text());
}

TEST_CASE("a rank is lost: the error of what is launched and waits for it names both") {
  Setup setup = shared(true);
  setup.cuttable = true;
  EngineWorld world(2, setup);
  std::atomic<bool> go{false};
  const std::string wrong = run(world, [&](Program& p) {
    GpuProgram g(p, 0);
    OnGpu first = g.submit(of_floats(Kind::allreduce, "first", 9), Program::bytes_of(ramp(9, p.rank)));
    p.expect(g.values<float>(first) == summed(9, 2), "sum");
    if (p.rank == 1) g.gpu().hold([&go] { return go.load(); });
    OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 9), Program::bytes_of(ramp(9, p.rank)));
    p.expect(g.finish(t).ok(), "launched");
    p.mark();
    p.await_marks(2);
    if (p.rank == 1) {
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    world.cut(1);
    bool there = false;
    Status s;
    for (const Deadline deadline = Deadline::after(10); s.ok() && !there && !deadline.passed();) {
      s = t.op->on_device->completion->reached(&there);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    go = true;
    p.expect(contains(s.message(), "allreduce 'x'") && contains(s.message(), "rank 1 was lost"), s.message());
  });
  go = true;
  CHECK(wrong == "");
}

TEST_CASE("ranks that are threads of one process with a GPU each go by way of the host") {
  Log log;
  check_on_gpus(2, shared(true, &log), [&](Program& p, GpuProgram& g) {
    Request q = Program::request(Kind::allreduce, "t", {9}, DType::float32);
    q.op = ReduceOp::sum;
    OnGpu t = g.submit(q, Program::bytes_of(std::vector<float>(9, 1)));
    p.expect(g.values<float>(t) == std::vector<float>(9, 2), "sum");
  });
  CHECK(contains(log.text(), "rank 0 and rank 1 are threads of one process with a GPU each"));
}
