// Schedules in whole engines: that repeated steps adopt one, and that every way out of it leads to right results.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr int kSteps = 12;

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

void everywhere(const std::function<void(Program&)>& body, const std::function<void(EngineWorld&)>& after, Settings settings = crowded()) {
  for (Layout layout : kLayouts) {
    for (int size : {2, 3, 4, 5, 8}) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      EngineWorld world(size, {layout, settings});
      CHECK(run(world, body) == "");
      after(world);
    }
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
    }, [](EngineWorld& world) {
      adopted(world);
      CHECK(world.stats(0).negotiated < 30);
    });
  }
}

TEST_CASE("no schedule with capacity 0, or for steps longer than the capacity") {
  for (size_t capacity : {0, 4}) {
    Settings settings = crowded();
    settings.cache_capacity = capacity;
    everywhere([](Program& p) {
      std::mt19937 random(p.rank);
      for (int s = 0; s < 10; ++s) step(p, "g", 5, &random);
    }, [](EngineWorld& world) { CHECK(world.stats(0).schedules == 0); }, settings);
  }
}

TEST_CASE("every way out of a schedule") {
  struct Way {
    const char* what;
    std::function<void(Program&)> leave;
  };
  const Way ways[] = {
      {"a new tensor on all ranks", [](Program& p) { p.equal(p.sum("new", 1), p.size, "new"); }},
      {"a new tensor, the last rank late",
       [](Program& p) {
    if (p.rank == p.size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    p.equal(p.sum("new", 1), p.size, "new");
  }},
      {"another shape", [](Program& p) { p.equal(p.sum("g0", 1, 77), p.size, "g0"); }},
      {"only part of a step", [](Program& p) { p.equal(p.sum("g1", 3, 12), 3 * p.size, "g1"); }},
      {"a barrier", [](Program& p) { p.barrier(); }},
      {"join",
       [](Program& p) {
    if (p.rank) p.equal(p.sum("g0", 1), p.size - 1, "without rank 0");
    p.last_joined();
  }},
      {"a process set",
       [](Program& p) {
    const uint32_t set = p.add_set({p.size - 1});
    if (p.rank == p.size - 1) p.equal(p.sum("mine", 5, 1, set), 5, "alone");
    p.remove_set(set);
  }},
      {"a mismatch",
       [](Program& p) {
    TaskPtr t = p.sum_async("g2", 1, p.rank == p.size - 1 ? 5 : 23);
    const Status s = p.finish(*t);
    p.expect(s.code() == Code::mismatch, "mismatch expected: " + s.message());
  }},
      {"evaluation",
       [](Program& p) {
    std::mt19937 random(p.rank);
    for (int i = 0; i < 5; ++i) step(p, "eval", 3, &random);
  }},
      {"polling for part of a step",
       [](Program& p) {
    TaskPtr t = p.sum_async("g1", 3, 12);
    const Deadline deadline = Deadline::after(15);
    while (!p.engine.poll(*t->op)) {
      p.expect(!deadline.passed(), "polled in vain");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    p.equal(t->at<int32_t>(0), 3 * p.size, "g1");
  }},
  };
  for (const Way& way : ways) {
    CAPTURE(way.what);
    everywhere([&](Program& p) {
      std::mt19937 random(p.rank);
      for (int round = 0; round < 3; ++round) {
        for (int s = 0; s < kSteps; ++s) step(p, "g", 4, &random);
        way.leave(p);
      }
      step(p, "g", 4, &random);
    }, adopted);
  }
}

// A schedule that begins with an operation of a few ranks: the others take part in some of its buckets only.
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
      // Long enough for a schedule of "x" alone to be tried and given up.
      for (int i = 0; i < 150; ++i) step(i);
      const uint64_t before = p.engine.stats().negotiated;
      for (int i = 0; i < 20; ++i) step(i);
      negotiated[p.rank] = p.engine.stats().negotiated - before;
      if (p.rank != 0) p.await_marks(1);
      TaskPtr first = p.sum_async("x", 1), second;
      if (p.rank == 0) {  // the others have not submitted it, so it is in flight
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

TEST_CASE("a name that stands for tensors of different sizes in turn is never mistaken") {
  for (Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    EngineWorld world(2, {layout, crowded()});
    CHECK(run(world, [&](Program& p) {
      auto one = [&](size_t n, int i) {
        TaskPtr t = p.sum_async("x", p.rank + i, n);
        p.wait(*t);
        for (size_t k = 0; k < n; ++k) p.equal(t->at<int32_t>(k), 1 + 2 * i, "element " + std::to_string(k));
      };
      for (int i = 0; i < 200; ++i) {
        one(20, i);
        one(10, i);
        if (i % 23 == 0) one(10, -i);  // out of turn
      }
    }) == "");
  }
}

TEST_CASE("schedules over process sets, also when an id belonged to other ranks before") {
  everywhere([](Program& p) {
    for (int round = 0; round < 3; ++round) {
      std::vector<int> ranks;
      for (int r = round % 2; r < std::max(1, p.size - 1) + round % 2; ++r) ranks.push_back(r);
      const uint32_t set = p.add_set(ranks);
      const bool member = std::find(ranks.begin(), ranks.end(), p.rank) != ranks.end();
      int want = 0;
      for (int r : ranks) want += r + 1;
      for (int s = 0; s < 2 * kSteps; ++s) {
        TaskPtr t;
        if (member) t = p.sum_async("part", p.rank + 1, 40, set);
        if (s < kSteps) p.equal(p.sum("all", 1), p.size, "world");
        if (!t) continue;
        p.wait(*t);
        p.equal(t->at<int32_t>(39), want, "part");
      }
      p.expect(p.remove_set(set), "removed");
    }
  }, adopted);
}

// More unnamed operations between two uses of a name than the engine remembers.
TEST_CASE("a rank never forgets its part of a schedule") {
  Settings settings = crowded();
  settings.cache_capacity = 6;
  everywhere([](Program& p) {
    for (int s = 0; s < 60; ++s) {
      TaskPtr named = p.sum_async("w", p.rank + 1, 5);
      TaskPtr a = p.sum_async("", 1, 5), b = p.sum_async("", 2, 5);
      for (auto [t, want] : {std::pair(named, total(p.size)), std::pair(a, p.size), std::pair(b, 2 * p.size)}) {
        p.wait(*t);
        p.equal(t->at<int32_t>(4), want, "step " + std::to_string(s));
      }
      if (s % 20 == 19) p.barrier();
    }
  }, adopted, settings);
}

TEST_CASE("a rank that no longer comes in the middle of a schedule: the stall is reported") {
  for (Layout layout : kLayouts) {
    std::mutex mutex;
    std::string logged;
    Given given{layout, crowded()};
    given.settings.stall_warning = 1;
    given.log = [&](LogLevel level, const std::string& text) {
      std::lock_guard lock(mutex);
      if (level == LogLevel::warning) logged += text;
    };
    const auto reported = [&] {
      std::lock_guard lock(mutex);
      return logged.find("missing on rank 1: g") != std::string::npos;
    };
    EngineWorld world(3, given);
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

// The root says "adopt" and "revoked" in one breath; this rank hears both before it has adopted.
TEST_CASE("the end of a schedule may arrive together with its beginning") {
  Given given{Layout::apart, crowded()};
  given.victims = {0};
  given.nodes = {0, 1, 1};
  EngineWorld world(3, given);
  std::map<int, std::unique_ptr<Link>> children;
  children[1] = adopt_socket(::dup(world.victim_fds(0).at(0)));
  Control root(0, nullptr, 0, std::move(children));
  announce_and_revoke(root, 1);
  bool settled = false;
  Frame frame;
  for (const Deadline deadline = Deadline::after(15); !settled && !deadline.passed();) {
    root.pump();
    while (root.pop(&frame)) settled = settled || frame.type == FrameType::settled;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(settled);
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
