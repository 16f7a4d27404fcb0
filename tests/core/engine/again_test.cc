// Submitting a completed operation's request again gives the same errors as a new one. The random jobs of
// programs_test.cc show that results are the same, in schedules and outside.
#include <doctest/doctest.h>

#include <thread>

#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

Status again(Program& p, Task& task, int32_t value, bool blocking = false) {
  task.in = Program::bytes_of(std::vector<int32_t>(task.in.size() / sizeof(int32_t), value));
  return p.engine.submit_again(&task.op, task.in.data(), task.out.data(), blocking);
}

void go(Program& p, Task& task, int32_t value, bool blocking = false) {
  const Status s = again(p, task, value, blocking);
  p.expect(s.ok(), "'" + task.name + "' again: " + s.message());
}

void refused(Program& p, const Status& s, const std::string& text) {
  p.expect(s.code() == Code::invalid_argument && s.message().find(text) != std::string::npos,
           "not refused as expected: '" + s.message() + "'");
}

// Expected sum of value + rank over the ranks.
int32_t sum_of(const Program& p, int32_t value) { return p.size * value + p.size * (p.size - 1) / 2; }

}  // namespace

TEST_CASE("again: blocking, one operation at a time") {
  everywhere([](Program& p) {
    TaskPtr named = p.sum_async("x", 1, 3), unnamed = p.sum_async("", 1, 3);
    p.wait(*named);
    p.wait(*unnamed);
    for (int s = 0; s < 40; ++s) {
      for (Task* task : {named.get(), unnamed.get()}) {
        go(p, *task, s + p.rank, true);
        p.wait(*task);
        p.equal(task->at<int32_t>(2), sum_of(p, s), "step " + std::to_string(s));
      }
    }
  });
}

TEST_CASE("again: refused while the operation is under way, and it ends as if nothing had been asked") {
  everywhere([](Program& p) {
    constexpr int kSteps = 12;
    if (p.rank) p.await_marks(1);
    TaskPtr task = p.sum_async("x", 1);
    for (int s = 0; s < kSteps; ++s) {
      if (p.size > 1 && p.rank == 0) {  // the other ranks have not submitted it, so it cannot be complete
        const Status early = p.engine.submit_again(&task->op, task->in.data(), task->out.data(), false);
        p.mark();
        refused(p, early, "still in flight");
      }
      p.barrier();
      p.wait(*task);
      p.equal(task->at<int32_t>(0), s ? sum_of(p, s) : p.size, "sum");
      p.barrier();
      if (p.rank) p.await_marks(std::min(s + 2, kSteps));
      go(p, *task, s + 1 + p.rank);
    }
    p.wait(*task);
  });
}

TEST_CASE("again: one name, two operations: the second is refused inside and outside of a schedule") {
  for (int before : {1, 20}) {
    CAPTURE(before);
    EngineWorld world(2, {Layout::one_node, crowded()});
    CHECK(run(world, [&](Program& p) {
      TaskPtr x, y;
      for (int s = 0; s < before; ++s) {
        x = p.sum_async("x", p.rank);
        y = p.sum_async("y", p.rank);
        p.wait(*x);
        p.wait(*y);
      }
      TaskPtr second = p.sum_async("x", p.rank);  // another object for the same name
      y = p.sum_async("y", p.rank);
      p.wait(*second);
      p.wait(*y);
      p.barrier();
      // Only rank 0 has submitted x, so it stays in flight until rank 1 submits it.
      if (p.rank == 0) {
        go(p, *x, p.rank);
        TaskPtr third;
        refused(p, again(p, *second, 0), "an operation named 'x' is still in flight");
        p.expect(second->op->done() && !second->op->status().ok(), "the refused operation is left pending");
        refused(p, p.try_submit(Program::request(Kind::allreduce, "x", {1}), Program::bytes_of(std::vector<int32_t>{0}), &third),
                "still in flight");
        p.mark();
      } else {
        p.await_marks(1);
        go(p, *x, p.rank);
      }
      go(p, *y, p.rank);
      p.wait(*x);
      p.wait(*y);
      go(p, *second, p.rank);  // free again
      p.wait(*second);
      p.equal(second->at<int32_t>(0), 1, "x");
    }) == "");
    if (before > 1) CHECK(world.stats().schedules > 0);
  }
}

TEST_CASE("again: after the end it fails like a new submission, and nobody waits in vain") {
  check_ranks(2, {Layout::one_node, crowded()}, [](Program& p) {
    TaskPtr task = p.sum_async("x", 1);
    for (int s = 0; s < 10; ++s) {
      p.wait(*task);
      go(p, *task, 1);
    }
    p.wait(*task);
    p.engine.shutdown("");
    const Status s = again(p, *task, 1);
    p.expect(s.code() == Code::shutdown || s.code() == Code::peer_lost, "not over: " + s.message());
    p.expect(task->op->done() && task->op->status().code() == s.code(), "left pending");
  });
}
