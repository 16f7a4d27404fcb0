// Schedules in whole engines: repeated steps adopt one, stalls, and sleep. Leaving schedules is tested by the
// random jobs of programs_test.cc and by interleavings_test.cc.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr int kSteps = 12;
const std::vector<int> kSteadySizes = {2, 3, 4, 5, 8};

// A training step: `n` sums submitted in any order, then waited for.
void step(Program& p, const std::string& prefix, int n, std::mt19937* random, bool unnamed = false) {
  std::vector<int> order(n);
  for (int i = 0; i < n; ++i) order[i] = i;
  if (!unnamed) std::shuffle(order.begin(), order.end(), *random);
  std::vector<TaskPtr> tasks(n);
  for (int i : order) tasks[i] = p.sum_async(unnamed ? "" : prefix + std::to_string(i), (p.rank + 1) * (i + 2), 1 + i * 11);
  for (int i = 0; i < n; ++i) {
    p.wait(*tasks[i]);
    p.equal(tasks[i]->at<int32_t>(i * 11), total(p.size) * (i + 2), prefix + std::to_string(i));
  }
}

void adopted(EngineWorld& world) {
  CHECK(world.stats(0).schedules > 0);
  CHECK(world.stats(0).scheduled > 0);
}

}  // namespace

TEST_CASE("repeated steps run without negotiation, whatever the order of submission") {
  for (bool unnamed : {false, true}) {
    everywhere([&](Program& p) {
      std::mt19937 random(p.rank);
      for (int s = 0; s < 30; ++s) step(p, "g", 9, &random, unnamed);
    }, crowded(), kSteadySizes, [](EngineWorld& world) {
      adopted(world);
      CHECK(world.stats(0).negotiated < 30);
    });
  }
}

TEST_CASE("a name that comes several times in a step: the step runs without negotiation, its name is in flight once") {
  for (Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    EngineWorld world(4, {layout, crowded()});
    std::vector<uint64_t> negotiated(4);
    REQUIRE(run(world, [&](Program& p) {
      auto step = [&](int i) {
        for (int k = 0; k < 5; ++k) p.equal(p.sum("x", p.rank + 1 + i + k, 3), total(p.size) + p.size * (i + k), "sum");
        p.equal(p.sum("y", p.rank + i), total(p.size) + p.size * (i - 1), "sum");
        p.barrier();
      };
      // Long enough for a schedule of "x" alone to be tried and abandoned.
      for (int i = 0; i < 150; ++i) step(i);
      const uint64_t before = p.engine.stats().negotiated;
      for (int i = 0; i < 20; ++i) step(i);
      negotiated[p.rank] = p.engine.stats().negotiated - before;
      if (p.rank != 0) p.await_marks(1);
      TaskPtr first = p.sum_async("x", 1), second;
      if (p.rank == 0) {  // the other ranks have not submitted it, so it is in flight
        const Status again = p.try_submit(Program::request(Kind::allreduce, "x", {1}), Program::bytes_of(std::vector<int32_t>{1}), &second);
        p.expect(again.code() == Code::invalid_argument, "the same name twice at a time");
        p.mark();
      }
      p.wait(*first);
      p.equal(first->at<int32_t>(0), p.size, "sum");
    }) == "");
    for (uint64_t n : negotiated) CHECK(n == 0);
  }
}

TEST_CASE("rank 0 changes the fusion threshold and the tuning while steps run: every rank switches, every sum is right") {
  const auto body = [](Program& p) {
    std::mt19937 random(p.rank);
    for (int s = 0; s < 60; ++s) {
      if (p.rank == 0 && s % 6 == 5) {
        Tuning tuning;
        tuning.chunk_bytes = size_t{4096} << (s / 6 % 3);
        tuning.doubling_bytes = tuning.pair_bytes = tuning.slice_doubling_bytes = s / 6 % 2 ? 0 : 1 << 20;
        p.engine.retune(s / 6 % 2 ? 0 : 1 << 20, tuning);
      }
      step(p, "g", 9, &random);
    }
  };
  everywhere(body, crowded(), kSteadySizes, [](EngineWorld& world) {
    CHECK(world.stats(0).schedules >= 4);
    for (int r = 1; r < world.size(); ++r) CHECK(world.stats(r).schedules == world.stats(0).schedules);
    CHECK(world.stats(0).fused > 0);
    CHECK(world.stats(0).fused < world.stats(0).operations);
    CHECK(world.stats(0).period_bytes == 9 * 4 + 11 * 36 * 4);
    CHECK(world.stats(0).period_hash == world.stats(world.size() - 1).period_hash);
  });
}

TEST_CASE("data staged for a bucket that does not run are withdrawn") {
  everywhere([](Program& p) {
    for (int round = 0; round < 4; ++round) {
      for (int s = 0; s < 8; ++s) p.equal(p.sum("x", s), s * p.size, "repeated");
      // Rank 0 stages "x" and waits. The other ranks leave the schedule, and "y" is the next operation of the group.
      TaskPtr x = p.rank ? nullptr : p.sum_async("x", 1000);
      if (p.rank == 0) p.expect(!x->op->sleep_until(Deadline::after(2e-3)) || p.size == 1, "ran alone");
      p.equal(p.sum("y", p.rank + 1, 50), total(p.size), "other data of the same size class");
      if (p.rank) x = p.sum_async("x", 2000);
      p.wait(*x);
      p.equal(x->at<int32_t>(0), 1000 + 2000 * (p.size - 1), "staged data");
    }
  });
}

TEST_CASE("a rank that no longer comes in the middle of a schedule: the stall is reported") {
  for (Layout layout : kLayouts) {
    std::mutex mutex;
    std::string logged;
    Setup setup{layout, crowded()};
    setup.settings.stall_warning = 1;
    setup.log = [&](LogLevel level, const std::string& text) {
      std::lock_guard lock(mutex);
      if (level == LogLevel::warning) logged += text;
    };
    const auto reported = [&] {
      std::lock_guard lock(mutex);
      return logged.find("missing on rank 1: g") != std::string::npos;
    };
    EngineWorld world(3, setup);
    CHECK(run(world, [&](Program& p) {
      std::mt19937 random(p.rank);
      for (int s = 0; s < kSteps; ++s) step(p, "g", 3, &random);
      const Deadline patience = Deadline::after(15);
      while (p.rank == 1 && !reported() && !patience.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      step(p, "g", 3, &random);
    }) == "");
    adopted(world);
    CHECK(reported());
  }
}

TEST_CASE("an idle world sleeps") {
  for (Layout layout : kLayouts) {
    for (bool scheduled : {false, true}) {
      CAPTURE(name_of(layout));
      CAPTURE(scheduled);
      Settings settings;  // spinning, as on a machine with a core for each rank
      settings.timeout = 20;
      EngineWorld world(4, {layout, settings});
      CHECK(run(world, [&](Program& p) {
        std::mt19937 random(p.rank);
        for (int s = 0; s < (scheduled ? kSteps : 1); ++s) step(p, "g", 3, &random);
      }) == "");
      if (scheduled) adopted(world);
      CHECK(sleeps(5));
    }
  }
}
