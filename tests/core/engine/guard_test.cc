// Guarded schedules in whole engines, every rank on a node of its own: how many messages a step takes, that the bits are those of
// negotiated steps, and every way in which a vote can end.
#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <random>

#include "../contains.h"
#include "collectives/guarded.h"
#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr int kSizes[] = {2, 3, 4, 5, 8};
constexpr int kSteps = 12;  // until a schedule runs

// Messages that left a rank, each sent in one piece.
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

Given apart() { return {Layout::apart, crowded()}; }

void settle(Program& p) {
  for (int s = 0; s < kSteps; ++s) p.equal(p.sum("x", 1), p.size, "sum");
}

TaskPtr floats(Program& p, const std::string& name, size_t n, uint64_t seed, DType d, double prescale = 1, ReduceOp op = ReduceOp::sum) {
  std::mt19937_64 random(seed * 64 + static_cast<uint64_t>(p.rank));
  std::vector<std::byte> in(n * size_of(d));
  for (size_t i = 0; i < n; ++i) {
    // Of the wide types every bit counts; 16-bit floats of ordinary size, or sums would be infinite.
    const float x = static_cast<float>(random() % 2000) / 512.0f - 2.0f;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    if (d == DType::float32) std::memcpy(in.data() + 4 * i, &x, 4);
    if (d == DType::bfloat16) std::memcpy(in.data() + 2 * i, reinterpret_cast<std::byte*>(&bits) + 2, 2);
    if (d == DType::float64) {
      const double y = static_cast<double>(x) + 1e-9 * static_cast<double>(random() % 1000);
      std::memcpy(in.data() + 8 * i, &y, 8);
    }
  }
  Request q = Program::request(Kind::allreduce, name, {static_cast<int64_t>(n)}, d);
  q.prescale = prescale;
  q.op = op;
  return p.submit(std::move(q), std::move(in));
}

uint64_t hash_of(uint64_t hash, const std::vector<std::byte>& bytes) {
  for (std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 1099511628211u;
  return hash;
}

}  // namespace

TEST_CASE("a small step takes log2(P) exchanges and no control message") {
  for (int size : kSizes) {
    for (bool barrier : {false, true}) {
      CAPTURE(size);
      CAPTURE(barrier);
      std::vector<Counts> counts(size);
      Given given = apart();
      given.wrap = [&](std::unique_ptr<Link> link, int rank, int, bool data) {
        return std::make_unique<CountingLink>(std::move(link), data ? &counts[rank].data : &counts[rank].control);
      };
      EngineWorld world(size, given);
      int places = 1, doublings = 0;
      for (; 2 * places <= size; places *= 2) ++doublings;
      const int folded = size - places;
      CHECK(run(world, [&](Program& p) {
        auto once = [&] { barrier ? p.barrier() : p.equal(p.sum("x", 1), p.size, "sum"); };
        for (int s = 0; s < kSteps; ++s) once();
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

TEST_CASE("guarded steps have the bits of negotiated ones") {
  for (int size : kSizes) {
    for (DType d : {DType::float32, DType::bfloat16, DType::float64}) {
      CAPTURE(size);
      CAPTURE(name_of(d));
      EngineWorld world(size, apart());
      std::vector<uint64_t> hashes(size);
      CHECK(run(world, [&](Program& p) {
        for (int s = 0; s < 2 * kSteps; ++s) {
          std::vector<TaskPtr> tasks{floats(p, "one", 100, 1, d), floats(p, "two", 33, 2, d, 0.3, ReduceOp::average),
                                     floats(p, "none", 0, 3, d), floats(p, "max", 7, 4, d, 1, ReduceOp::max),
                                     floats(p, "edge", 9000, 5, d, 1, ReduceOp::average)};
          uint64_t hash = 1;
          for (auto& t : tasks) {
            p.wait(*t);
            hash = hash_of(hash, t->out);
          }
          if (s == 0) hashes[p.rank] = hash;
          p.equal(hash, hashes[p.rank], "hash of step " + std::to_string(s));
        }
      }) == "");
      CHECK(world.stats(0).scheduled > 0);
      for (uint64_t h : hashes) CHECK(h == hashes[0]);
    }
  }
}

TEST_CASE("a caller's memory is untouched until its operation takes place") {
  EngineWorld world(4, apart());
  CHECK(run(world, [](Program& p) {
    settle(p);
    // All but rank 3 vote for "x" with their values aboard; rank 3 does something else, and the others find that it is not summed.
    if (p.rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    TaskPtr x;
    if (p.rank != 3) x = p.sum_async("x", 5);
    if (p.rank != 3) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    if (x) p.equal(x->at<int32_t>(0), 0, "written too early");
    p.equal(p.sum("other", 1), p.size, "other");
    if (x) {
      const bool early = x->op->done();
      p.mark();
      p.expect(!early, "ended without rank 3");
    } else {
      p.await_marks(3);
      x = p.sum_async("x", 5);
    }
    p.wait(*x);
    p.equal(x->at<int32_t>(0), 5 * p.size, "x");
  }) == "");
  CHECK(world.stats(0).revocations >= 1);
}

TEST_CASE("one rank, several and all deviate while others vote") {
  for (int size : kSizes) {
    for (int deviating = 1; deviating <= size; deviating += size > 3 ? 2 : 1) {
      CAPTURE(size);
      CAPTURE(deviating);
      EngineWorld world(size, apart());
      CHECK(run(world, [&](Program& p) {
        for (int round = 0; round < 4; ++round) {
          settle(p);
          const bool first = (p.rank + round) % p.size < deviating;
          std::vector<TaskPtr> tasks;
          if (first) tasks.push_back(p.sum_async("new", p.rank + 1));
          tasks.push_back(p.sum_async("x", p.rank + 1));
          if (!first) tasks.push_back(p.sum_async("new", p.rank + 1));
          for (auto& t : tasks) {
            p.wait(*t);
            p.equal(t->at<int32_t>(0), total(p.size), t->name);
          }
        }
      }) == "");
      CHECK(world.stats(0).schedules > 0);
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
  for (int size : kSizes) {
    for (int victim : {0, size - 1}) {
      CAPTURE(size);
      CAPTURE(victim);
      Given given = apart();
      given.cuttable = true;
      EngineWorld world(size, given);
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
  for (int size : kSizes) {
    for (bool voted : {false, true}) {
      CAPTURE(size);
      CAPTURE(voted);
      EngineWorld world(size, apart());
      CHECK(run(world, [&](Program& p) {
        settle(p);
        if (p.rank == 1) {
          TaskPtr mine;
          // Rank 0 does not vote then, so that nothing can be agreed on.
          if (voted) mine = p.sum_async("x", 1);
          p.await_marks(p.size - 1 - voted);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          p.engine.shutdown("had enough");
          if (mine) p.expect(p.finish(*mine).code() == Code::shutdown, "mine");
          return;
        }
        if (p.rank == 0 && voted) return;
        TaskPtr t = p.sum_async("x", 1);
        p.mark();
        p.patience = 15;  // less than the timeout of collectives
        const Status s = p.finish(*t);
        p.expect(s.code() == Code::shutdown, "code of: " + s.message());
        p.expect(contains(s.message(), "rank 1") && contains(s.message(), "had enough"), "message: " + s.message());
      }) == "");
    }
  }
}

TEST_CASE("a rank that is slow for longer than the patience and the timeout of collectives is no error") {
  Given given = apart();
  given.settings.timeout = 2.5;
  EngineWorld world(3, given);
  CHECK(run(world, [](Program& p) {
    settle(p);
    if (p.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(3500));
    p.equal(p.sum("x", 1), p.size, "late");
    settle(p);
  }) == "");
  CHECK(world.stats(0).revocations >= 1);
}

TEST_CASE("who waits for votes sleeps") {
  for (bool blocking : {false, true}) {
    Given given = apart();
    given.settings = Settings{};  // spinning, as on a machine with a core for each rank
    EngineWorld world(4, given);
    std::atomic<bool> slept{false};
    CHECK(run(world, [&](Program& p) {
      settle(p);
      if (p.rank == 3) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        slept = sleeps(3);  // later the others would give the schedule up
      }
      p.wait(*p.sum_async("x", 1, 1, 0, blocking));
    }) == "");
    CHECK(slept);
  }
}

namespace {

// Steps of floats of all sizes and of other kinds, now and then something else, at other times and in other orders on each rank.
uint64_t random_program(Program& p, uint64_t seed, int rounds) {
  std::mt19937_64 common(seed), own(seed * 31 + static_cast<uint64_t>(p.rank));
  uint64_t hash = seed;
  for (int round = 0; round < rounds; ++round) {
    const bool special = common() % 9 == 0;
    const size_t n = 1 + common() % 3;
    std::vector<std::function<TaskPtr()>> parts;
    for (size_t i = 0; i < 4; ++i) {
      const size_t count = i == 3 ? 20000 : 1 + i * 700;  // one too large to ride along
      parts.push_back([&, i, count] {
        return floats(p, "g" + std::to_string(i), count, static_cast<uint64_t>(round), i == 1 ? DType::bfloat16 : DType::float32);
      });
    }
    parts.push_back([&] {
      Request q = Program::request(Kind::broadcast, "b", {50});
      q.root = 0;
      return p.submit(q, Program::bytes_of(std::vector<int32_t>(50, p.rank == 0 ? round : -1)));
    });
    parts.push_back(
        [&] { return p.submit(Program::request(Kind::alltoall, "a", {p.size}), Program::bytes_of(std::vector<int32_t>(p.size, round))); });
    parts.push_back([&] { return p.submit(Program::request(Kind::barrier, "c"), {}); });
    if (special) {
      for (size_t i = 0; i < n; ++i)
        parts.push_back([&, i] { return floats(p, "s" + std::to_string(i), 64, static_cast<uint64_t>(round), DType::float64); });
    }
    std::vector<TaskPtr> tasks(parts.size());
    std::vector<size_t> order(parts.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), own);
    for (size_t i : order) {
      tasks[i] = parts[i]();
      if (own() % 40 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
    }
    for (auto& t : tasks) {
      if (own() % 3 == 0) p.engine.poll(*t->op);
      p.wait(*t);
      hash = hash_of(hash, t->out);
    }
  }
  return hash;
}

}  // namespace

TEST_CASE("random programs: the same hash on every rank, and without schedules") {
  for (int size : kSizes) {
    for (size_t threshold : {size_t{128} << 20, size_t{5000}, size_t{0}}) {
      CAPTURE(size);
      CAPTURE(threshold);
      uint64_t hashes[2];
      for (bool scheduled : {false, true}) {
        Given given = apart();
        given.settings.fusion_threshold = threshold;
        given.settings.spins = size % 2 ? 0 : 50;
        if (!scheduled) given.settings.cache_capacity = 0;
        EngineWorld world(size, given);
        std::vector<uint64_t> all(size);
        REQUIRE(run(world, [&](Program& p) { all[p.rank] = random_program(p, 100 + static_cast<uint64_t>(size), 60); }) == "");
        for (uint64_t h : all) CHECK(h == all[0]);
        hashes[scheduled] = all[0];
        if (scheduled) CHECK(world.stats(0).scheduled > 0);
      }
      CHECK(hashes[0] == hashes[1]);
    }
  }
}
