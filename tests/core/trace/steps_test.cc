// Step accounting: time in waits and collectives, bytes, reported and detected steps.
#include "trace/steps.h"

#include <doctest/doctest.h>

#include "engine/harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

std::vector<std::shared_ptr<StepMeter>> meters(EngineWorld& world) {
  std::vector<std::shared_ptr<StepMeter>> made;
  for (int r = 0; r < world.size(); ++r) {
    made.push_back(std::make_shared<StepMeter>(world.engine(r).waits()));
    world.engine(r).observers().add(made.back());
  }
  return made;
}

TEST_CASE("a step counts what callers were blocked, what collectives took and moved") {
  EngineWorld world(2);
  const auto meter = meters(world);
  constexpr auto kLate = std::chrono::milliseconds(40);
  std::atomic<int> waiting{0};  // number of steps that rank 0 has reached
  CHECK(run(world, [&](Program& p) {
    p.barrier();
    StepMeter& own = *meter[p.rank];
    uint64_t begun = 0;
    own.listen([&begun](uint64_t number) { begun = number; });
    own.step(0);
    p.expect(begun == 1 && own.made() == 1, "the first mark begins step 1");
    for (int step = 0; step < 3; ++step) {
      if (p.rank == 0) ++waiting;
      for (const Deadline end = Deadline::after(60); waiting <= step && !end.passed();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (p.rank == 1) std::this_thread::sleep_for(kLate);
      p.equal(p.sum("a", 1, 1000), 2, "sum");
      own.step(7);
    }
    p.expect(begun == 4 && own.made() == 4, "each mark begins one more");
    own.listen(nullptr);
  }) == "");
  const auto first = meter[0]->take(), second = meter[1]->take();
  REQUIRE(first.size() == 3);
  REQUIRE(second.size() == 3);
  const auto line = meter[0]->line();
  for (size_t i = 0; i < 3; ++i) {
    CHECK(first[i].number == i + 1);
    CHECK(first[i].data == 7);
    CHECK(first[i].bytes == 4000);
    CHECK(first[i].moved == 4000);  // 2 (P - 1) / P of the bytes
    CHECK(first[i].operations == 1);
    CHECK(first[i].tensors == 1);
    CHECK(first[i].unattended == 0);
    CHECK(first[i].hidden <= first[i].collectives);
    CHECK(first[i].blocked <= first[i].time);
    CHECK(first[i].arrival <= first[i].end);
    CHECK(line.seconds(first[i].blocked) > 0.01);  // for the other rank
    CHECK(second[i].blocked < first[i].blocked);
    CHECK(line.seconds(second[i].time) > 0.03);
  }
  CHECK(meter[0]->take().empty());
}

TEST_CASE("steps of programs that say nothing are found where a schedule comes round, until the program speaks") {
  EngineWorld world(2);
  const auto meter = meters(world);
  meter[0]->find();
  CHECK(run(world, [&](Program& p) {
    for (int step = 0; step < 30; ++step) {
      p.equal(p.sum("a", 1), 2, "a");
      p.equal(p.sum("b", 1), 2, "b");
    }
  }) == "");
  const auto found = meter[0]->take();
  CHECK(found.size() > 10);
  CHECK(found.size() < 30);
  CHECK(meter[0]->made() == 30);  // counted from the first one on
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].number == found[0].number + i);
    CHECK(found[i].tensors == 2);
  }
  CHECK(found.back().number < 30);  // on a busy machine the last steps may be outside of a schedule
  // Operations between two schedules are counted too, and other operations are no steps. On a busy machine schedules
  // may end early, but not in each attempt.
  uint64_t before = 0;
  auto more = meter[0]->take();
  for (int attempt = 0; attempt < 10 && (more.empty() || meter[0]->made() != before + 60); ++attempt) {
    before = meter[0]->made();
    CHECK(run(world, [&](Program& p) {
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (int i = 0; i < 4; ++i) p.equal(p.sum("validation", 1), 2, "validation");
        for (int step = 0; step < 20; ++step) {
          p.equal(p.sum("a", 1), 2, "a");
          p.equal(p.sum("b", 1), 2, "b");
        }
      }
    }) == "");
    more = meter[0]->take();
  }
  REQUIRE(!more.empty());
  CHECK(meter[0]->made() == before + 60);
  CHECK(more.back().number < before + 60);
  for (const auto& step : more) CHECK(step.tensors == 2);
  CHECK(meter[1]->take().empty());  // it was not requested
  // A loop that repeats more often than the previous one is the training loop.
  const uint64_t longer = before + 120;
  CHECK(run(world, [&](Program& p) {
    for (uint64_t step = 0; step < longer; ++step) p.equal(p.sum("c", 1), 2, "c");
  }) == "");
  CHECK(meter[0]->made() == longer);
  meter[0]->step(0);
  meter[0]->step(0);
  CHECK(run(world, [&](Program& p) { p.equal(p.sum("a", 1) + p.sum("b", 1), 4, "both"); }) == "");
  const auto taken = meter[0]->take();
  REQUIRE(taken.size() == 1);
  CHECK(taken[0].number == 1);
}

}  // namespace
