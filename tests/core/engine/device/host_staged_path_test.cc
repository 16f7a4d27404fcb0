// Operations on GPU tensors through the host, over the simulated driver: a rank's stream writes its tensors
// late, and reads the results.
#include <doctest/doctest.h>

#include <numeric>

#include "contains.h"
#include "engine/device/gpu.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("the values that a stream writes after the call are reduced, at every size, in place and not") {
  for (Layout layout : kLayouts) {
    for (int size : {1, 2, 4}) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      check_on_gpus(size, on_gpus(layout), [](Program& p, GpuProgram& g) {
        for (size_t n : {size_t{0}, size_t{1}, size_t{1000}, size_t{(4 << 20) / 4}, size_t{(9 << 20) / 4 + 1}}) {
          for (bool in_place : {true, false}) {
            const std::string name = "t" + std::to_string(n) + (in_place ? "i" : "o");
            OnGpu t = g.submit(of_floats(Kind::allreduce, name, n), Program::bytes_of(ramp(n, p.rank)),
                               in_place ? 0 : std::max<size_t>(n * 4, 1));
            t.bytes = n * 4;
            p.expect(g.values<float>(t) == summed(n, p.size), name);
          }
        }
      });
    }
  }
}

namespace {

// The engine's counters after steps of so many tensors.
Engine::Stats counted_in_steps(size_t tensors) {
  EngineWorld world(3, on_gpus(Layout::one_node));
  check_on_gpus(world, [tensors](Program& p, GpuProgram& g) {
    for (int step = 0; step < 60; ++step) {
      std::vector<OnGpu> tasks;
      for (size_t i = 0; i < tensors; ++i) {
        Request q = of_floats(Kind::allreduce, "grad." + std::to_string(i), 100 + i, ReduceOp::average);
        tasks.push_back(g.submit(std::move(q), Program::bytes_of(std::vector<float>(100 + i, static_cast<float>(step + p.rank)))));
      }
      for (size_t i = 0; i < tasks.size(); ++i) {
        p.expect(g.values<float>(tasks[i]) == std::vector<float>(100 + i, static_cast<float>(step + 1)), "step " + std::to_string(step));
      }
    }
  });
  return world.stats();
}

}  // namespace

TEST_CASE("steps settle into a schedule and stay right") {
  for (size_t tensors : {size_t{1}, size_t{8}}) {
    // Holds however the operations of a step were fused, and whenever their data arrived. A busy machine may
    // break a schedule, but not every time.
    Engine::Stats counted = counted_in_steps(tensors);
    for (int again = 0; again < 4 && (counted.scheduled <= 60 || counted.revocations >= 4); ++again) counted = counted_in_steps(tensors);
    CAPTURE(tensors);
    CAPTURE(counted.schedules);
    CAPTURE(counted.revocations);
    CAPTURE(counted.scheduled);
    CHECK(counted.scheduled > 60);
    CHECK(counted.revocations < 4);
  }
}

TEST_CASE("where there is no more pinned memory, what there is has to do") {
  check_on_gpus(2, on_gpus(Layout::one_node), [](Program& p, GpuProgram& g) {
    const size_t piece = (4 << 20) / 4, n = 6 * piece;
    OnGpu first = g.submit(of_floats(Kind::allreduce, "first", piece), Program::bytes_of(ramp(piece, p.rank)));
    p.expect(g.values<float>(first) == summed(piece, 2), "first");
    OnGpu large;
    large.in = large.out = g.gpu().allocate(n * 4);
    g.gpu().write(large.in, Program::bytes_of(ramp(n, p.rank)));
    p.barrier();
    if (p.rank == 0) set_knob("fail_alloc", 1);  // of either rank's pieces, beyond the first
    p.barrier();
    const Status s = g.try_submit(of_floats(Kind::allreduce, "large", n), {}, &large, n * 4, nullptr, false);
    p.expect(s.ok(), s.message());
    p.expect(g.values<float>(large) == summed(n, 2), "large");
  });
}

TEST_CASE("tensors of CPU and GPU in one job; ranks that disagree about it get an error that names both, and go on") {
  check_on_gpus(2, on_gpus(Layout::one_node), [](Program& p, GpuProgram& g) {
    p.equal(p.sum("host", 1), 2, "on the CPU");
    if (p.rank == 0) {
      OnGpu t = g.submit(Program::request(Kind::allreduce, "x", {1}), Program::bytes_of(std::vector<int32_t>{1}));
      const Status s = g.finish(t);
      p.expect(s.code() == Code::mismatch && contains(s.message(), "device of the tensor: CUDA GPU on rank 0, CPU on rank 1"), s.message());
    } else {
      TaskPtr t = p.submit(Program::request(Kind::allreduce, "x", {1}), Program::bytes_of(std::vector<int32_t>{1}));
      p.expect(p.finish(*t).code() == Code::mismatch, "no mismatch");
    }
    OnGpu t = g.submit(of_floats(Kind::allreduce, "x", 4), Program::bytes_of(ramp(4, p.rank)));
    p.expect(g.values<float>(t) == summed(4, 2), "afterwards");
    p.equal(p.sum("host", 2), 4, "on the CPU");
  });
}

TEST_CASE("what cannot be is refused where it is submitted") {
  check_ranks(1, on_gpus(Layout::one_node), [](Program& p) {
    const auto refusal = [&](Place place) {
      std::byte value{};
      OperationPtr op;
      const Status s = p.engine.submit(Program::request(Kind::allreduce, "x", {1}, DType::uint8), &value, &value, &op, nullptr, &place);
      p.expect(s.code() == Code::invalid_argument, s.message());
      return s.message();
    };
    p.expect(contains(refusal({DeviceKind::cuda, 7, nullptr}), "CUDA GPU 7 does not exist; this process sees 4"), "no such GPU");
    GpuProgram g(p);
    OnGpu t = g.submit(of_floats(Kind::allreduce, "y", 1), Program::bytes_of(ramp(1, 0)));
    p.expect(g.values<float>(t) == ramp(1, 0), "alone");
    // There is nothing to compute, but another stream must still wait for this one's earlier work.
    p.expect(t.op->on_device->completion != nullptr, "in place");
    const std::string other = refusal({DeviceKind::cuda, 1, nullptr});
    p.expect(contains(other, "allreduce 'x': the tensor must be on the device of this rank's earlier tensors, CUDA GPU 0"), other);
    const Status again = p.engine.submit_again(&t.op, t.in, t.in, false);
    p.expect(again.code() == Code::invalid_argument, "submitted again");
  });
}

TEST_CASE("a rank is lost: operations on GPUs end with an error, wherever they are") {
  for (int round = 0; round < 5; ++round) {
    Setup setup = on_gpus(Layout::apart);
    setup.victims = {2};
    EngineWorld world(3, setup);
    CHECK(run(world, [&](Program& p) {
      GpuProgram g(p);
      std::vector<OnGpu> tasks;
      for (int i = 0; i < 4; ++i) {
        OnGpu task;
        const Status s =
            g.try_submit(of_floats(Kind::allreduce, "l" + std::to_string(i), 1 << 20), Program::bytes_of(ramp(1 << 20, p.rank)), &task);
        p.expect(s.ok() || s.code() == Code::peer_lost, s.message());
        if (s.ok()) tasks.push_back(task);
      }
      if (p.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2 * round));
      if (p.rank == 0) world.kill_victims();
      for (const OnGpu& t : tasks) p.expect(g.finish(t).code() == Code::peer_lost, "no error");
    }, {0, 1}) == "");
  }
}

TEST_CASE("what is submitted while its stream is captured is refused, and another capture is not spoilt") {
  check_on_gpus(1, on_gpus(Layout::one_node), [](Program& p, GpuProgram& g) {
    OnGpu under_way = g.submit(of_floats(Kind::allreduce, "before", 1 << 20), Program::bytes_of(ramp(1 << 20, 0)));
    g.gpu().begin_capture();
    OnGpu task;
    const Status s = g.try_submit(of_floats(Kind::allreduce, "x", 4), {}, &task, 0, nullptr, false);
    p.expect(s.code() == Code::invalid_argument && contains(s.message(), "allreduce 'x': the stream is being captured into a graph"),
             s.message());
    p.expect(g.finish(under_way).ok(), "what was under way");  // the engine polls events meanwhile
    p.expect(g.gpu().end_capture() == 0, "the capture is spoilt");
    p.expect(g.values<float>(under_way) == ramp(1 << 20, 0), "before");
  });
}

// Must be the last case: the GPU stays failed until the process ends.
TEST_CASE("a GPU that fails ends the job, and is named") {
  check_on_gpus(2, on_gpus(Layout::one_node), [](Program& p, GpuProgram& g) {
    OnGpu first = g.submit(of_floats(Kind::allreduce, "a", 3), Program::bytes_of(ramp(3, p.rank)));
    p.expect(g.values<float>(first) == summed(3, 2), "before");
    OnGpu second = g.submit(of_floats(Kind::allreduce, "b", 3), Program::bytes_of(ramp(3, p.rank)));
    g.gpu().lose();
    p.mark();
    p.await_marks(2);
    if (p.rank == 0) set_knob("fault", 719);
    const Status s = g.finish(second);
    if (!s.ok()) p.expect(contains(s.message(), "CUDA GPU") && contains(s.message(), "CUDA error 719"), s.message());
    OnGpu third;
    const Status refused = g.try_submit(of_floats(Kind::allreduce, "c", 3), {}, &third, 0, nullptr, false);
    p.expect(contains(refused.message(), "CUDA error 719"), refused.message());
  });
}
