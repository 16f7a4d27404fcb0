// Guarded schedules in whole engines, every rank on its own node: messages per step, and every way in which a
// vote can end. same_bits_test.cc shows that the bits equal those of negotiated steps.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>

#include "../contains.h"
#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr int kGuardedSizes[] = {2, 3, 4, 5, 8};
constexpr int kGuardedSteps = 12;  // until a schedule runs

// Messages sent by a rank, each in one piece.
struct Counts {
  std::atomic<int> data{0}, control{0};
};

class CountingLink final : public PassingLink {
 public:
  CountingLink(std::unique_ptr<Link> inner, std::atomic<int>* sent) : PassingLink(std::move(inner)), sent_(sent) {}
  int64_t try_send(ConstBytes data) override {
    const int64_t n = PassingLink::try_send(data);
    if (n > 0) ++*sent_;
    return n;
  }

 private:
  std::atomic<int>* sent_;
};

Setup apart() { return {Layout::apart, crowded()}; }

void settle(Program& p) {
  for (int s = 0; s < kGuardedSteps; ++s) p.equal(p.sum("x", 1), p.size, "sum");
}

}  // namespace

TEST_CASE("a small step takes log2(P) exchanges and no control message") {
  for (int size : kGuardedSizes) {
    for (bool barrier : {false, true}) {
      CAPTURE(size);
      CAPTURE(barrier);
      std::vector<Counts> counts(size);
      Setup setup = apart();
      setup.wrap = [&](std::unique_ptr<Link> link, int rank, int, bool data) {
        return std::make_unique<CountingLink>(std::move(link), data ? &counts[rank].data : &counts[rank].control);
      };
      EngineWorld world(size, setup);
      int places = 1, doublings = 0;
      for (; 2 * places <= size; places *= 2) ++doublings;
      const int folded = size - places;
      CHECK(run(world, [&](Program& p) {
        auto once = [&] { barrier ? p.barrier() : p.equal(p.sum("x", 1), p.size, "sum"); };
        for (int s = 0; s < kGuardedSteps; ++s) once();
        constexpr int kCounted = 40;
        const int data = counts[p.rank].data, control = counts[p.rank].control;
        for (int s = 0; s < kCounted; ++s) once();
        const int each = p.rank < 2 * folded ? (p.rank % 2 ? 1 : doublings + 1) : doublings;
        p.equal(counts[p.rank].data - data, kCounted * each, "data messages");
        p.equal(counts[p.rank].control - control, 0, "control messages");
      }) == "");
      CHECK(world.stats(0).scheduled >= 40);
      CHECK(world.stats(0).revocations == 0);
    }
  }
}

TEST_CASE("operations of a few ranks need not wait for a rank that does nothing") {
  EngineWorld world(4, apart());
  std::barrier<> served(4);
  CHECK(run(world, [&](Program& p) {
    const uint32_t set = p.add_set({1, 2});
    settle(p);
    if (p.rank == 1 || p.rank == 2) p.equal(p.sum("few", 1, 1, set), 2, "few");
    served.arrive_and_wait();  // ranks 0 and 3 submit nothing before
    p.equal(p.sum("x", 1), p.size, "x");
  }) == "");
}

TEST_CASE("a rank dies while others vote: everybody hears who") {
  for (int size : kGuardedSizes) {
    for (int victim : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(victim);
      Setup setup = apart();
      setup.cuttable = true;
      EngineWorld world(size, setup);
      CHECK(run(world, [&](Program& p) {
        settle(p);
        if (p.rank == victim) {
          p.await_marks(p.size - 1);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          world.cut(victim);
          return;
        }
        TaskPtr t = p.sum_async("x", 1);
        p.mark();
        p.patience = 15;  // less than the timeout of collectives
        const Status s = p.finish(*t);
        p.expect(s.code() == Code::peer_lost, "code of: " + s.message());
        p.expect(contains(s.message(), "rank " + std::to_string(victim)), "does not name the lost rank: " + s.message());
        p.expect(contains(s.message(), "'x'"), "does not name what was in flight: " + s.message());
      }) == "");
      CHECK(world.stats(0).schedules == 1);
    }
  }
}

TEST_CASE("a rank leaves while others vote, with and without a vote of its own") {
  for (int size : kGuardedSizes) {
    for (bool voted : {false, true}) {
      CAPTURE(size);
      CAPTURE(voted);
      check_ranks(size, apart(), [&](Program& p) {
        settle(p);
        if (p.rank == 1) {
          TaskPtr own;
          // Rank 0 does not vote then, so that no agreement is possible.
          if (voted) own = p.sum_async("x", 1);
          p.await_marks(p.size - 1 - voted);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          p.engine.shutdown("had enough");
          if (own) p.expect(p.finish(*own).code() == Code::shutdown, "mine");
          return;
        }
        if (p.rank == 0 && voted) return;
        TaskPtr t = p.sum_async("x", 1);
        p.mark();
        p.patience = 15;  // less than the timeout of collectives
        const Status s = p.finish(*t);
        p.expect(s.code() == Code::shutdown, "code of: " + s.message());
        p.expect(contains(s.message(), "rank 1") && contains(s.message(), "had enough"), "message: " + s.message());
      });
    }
  }
}
