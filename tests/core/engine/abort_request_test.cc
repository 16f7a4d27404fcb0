// Engine::give_up: the caller knows that the job is over while the links are silent.
#include <doctest/doctest.h>

#include <atomic>

#include "../contains.h"
#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr double kAtOnce = 10;  // seconds; every other end of a wait here would take longer
Status lost(int rank) { return Status(Code::peer_lost, "the launcher has lost host b", rank); }

void expect_lost(Program& p, const Status& s, int victim) {
  p.expect(s.code() == Code::peer_lost, "code of: " + s.message());
  p.expect(s.rank() == victim && p.engine.ended().rank() == victim, "the lost rank, as a number: " + std::to_string(s.rank()));
  p.expect(contains(s.message(), "host b"), "does not say why: " + s.message());
}

}  // namespace

TEST_CASE("giving up ends the wait for a rank that is silent, whoever drives, and leaving takes no time") {
  for (Layout layout : kLayouts) {
    for (bool all : {true, false}) {  // all living ranks are told, or one, which tells the others
      CAPTURE(name_of(layout));
      CAPTURE(all);
      Setup setup{layout, crowded()};
      setup.victims = {3};
      EngineWorld world(4, setup);
      std::atomic<int> submitted{0};
      std::thread launcher([&] {
        while (submitted.load() < 3) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        for (int r = 0; r < (all ? 3 : 1); ++r) world.engine(r).give_up(lost(3));
        world.engine(0).give_up(Status(Code::peer_lost, "said later", 1));
      });
      const std::string wrong = run(world, [&](Program& p) {
        TaskPtr t = p.sum_async("grad", 1);
        ++submitted;
        p.patience = kAtOnce;
        expect_lost(p, p.finish(*t), 3);
        p.expect(*p.engine.failures() == 1, "one operation has failed");
        p.expect(p.try_submit(Program::request(Kind::barrier, ""), {}, &t).code() == Code::peer_lost, "accepted after the end");
        p.expect(*p.engine.failures() == 2, "one was refused");
        if (!all) return;
        const auto begin = Clock::now();
        p.engine.shutdown("");
        p.expect(Clock::now() - begin < std::chrono::milliseconds(800), "waited for the silent one");
      }, {0, 1, 2});
      launcher.join();
      CHECK(wrong == "");
    }
  }
}

TEST_CASE("giving up ends a collective that is under way, and an engine that sleeps, and is harmless afterwards") {
  for (Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    EngineWorld world(3, {layout, crowded()});
    std::atomic<bool> stop{false};
    std::thread launcher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(60));
      for (int r = 0; r < 2; ++r) world.engine(r).give_up(lost(2));
      stop = true;
    });
    const std::string wrong = run(world, [&](Program& p) {
      p.patience = kAtOnce;
      Status s;
      // Rank 2 is told by the other ranks.
      for (int step = 0; s.ok() && step < 1000000; ++step) {
        TaskPtr t;
        s = p.try_submit(Program::request(Kind::allreduce, "grad", {20000}), Program::bytes_of<int32_t>(std::vector<int32_t>(20000, 1)),
                         &t);
        if (s.ok()) s = p.finish(*t);
      }
      expect_lost(p, s, 2);
    });
    launcher.join();
    CHECK(wrong == "");
    CHECK(stop.load());
    world.engine(0).give_up(lost(1));
    CHECK(world.engine(0).ended().rank() == 2);

    EngineWorld idle(2, {layout, crowded()});
    idle.engine(0).give_up(lost(1));
    const Deadline soon = Deadline::after(kAtOnce);
    while ((idle.engine(0).ended().ok() || idle.engine(1).ended().ok()) && !soon.passed()) std::this_thread::yield();
    CHECK(idle.engine(1).ended().rank() == 1);
    idle.engine(0).shutdown("");
    idle.engine(0).give_up(lost(1));
  }
}
