// Thousands of rounds of mixed operations in seeded random order; every element of every result is checked on every rank.
// HVD_STRESS_ROUNDS: rounds for each world (default 15).
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

int rounds() {
  const char* text = std::getenv("HVD_STRESS_ROUNDS");
  return text ? std::atoi(text) : 15;
}

struct Pending {
  TaskPtr task;
  std::function<void(Task&)> check;
};

// One operation that all members of a set make; what it is follows from (seed, index), so ranks agree without talking.
void submit_one(Program& p, uint64_t seed, int index, bool may_be_unnamed, uint32_t set, const std::vector<int>& ranks, std::vector<Pending>* pending) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(index));
  const bool large = random() % 8 == 0;
  const size_t n = 1 + random() % (large ? 20000 : 300);
  const int base = static_cast<int>(random() % 1000);
  const int members = static_cast<int>(ranks.size());
  const std::string name = may_be_unnamed && index % 4 == 1 ? "" : "op" + std::to_string(index);
  const auto mine = [&](int rank) { return base + rank * 3; };
  int sum = 0;
  for (int r : ranks) sum += mine(r);
  const int me = static_cast<int>(std::find(ranks.begin(), ranks.end(), p.rank) - ranks.begin());
  const std::vector<int32_t> data(n, mine(p.rank));
  Request q = Program::request(Kind::allreduce, name, {static_cast<int64_t>(n)});
  q.set = set;
  auto all_equal = [&p, name](Task& t, size_t from, size_t count, int32_t want) {
    for (size_t i = from; i < from + count; ++i) p.equal(t.at<int32_t>(i), want, "'" + name + "' element " + std::to_string(i));
  };
  switch (random() % 6) {
    case 0: {
      q.kind = Kind::broadcast;
      q.root = ranks[random() % ranks.size()];
      const int want = mine(q.root);
      pending->push_back({p.submit(q, Program::bytes_of(data)), [=](Task& t) { all_equal(t, 0, n, want); }});
      return;
    }
    case 1: {
      q.kind = Kind::allgather;
      const size_t rows = n % 50 + static_cast<size_t>(me);
      q.shape = {static_cast<int64_t>(rows)};
      std::vector<int32_t> some(rows, mine(p.rank));
      pending->push_back({p.submit(q, Program::bytes_of(some)), [=](Task& t) {
                            size_t at = 0;
                            for (size_t i = 0; i < ranks.size(); at += n % 50 + i, ++i) all_equal(t, at, n % 50 + i, base + ranks[i] * 3);
                          }});
      return;
    }
    case 2: {
      q.kind = Kind::reducescatter;
      q.shape = {static_cast<int64_t>(n)};
      const size_t part = n / members + (static_cast<size_t>(me) < n % members);
      pending->push_back({p.submit(q, Program::bytes_of(data)), [=](Task& t) { all_equal(t, 0, part, sum); }});
      return;
    }
    default:
      pending->push_back({p.submit(q, Program::bytes_of(data)), [=](Task& t) { all_equal(t, 0, n, sum); }});
  }
}

void program(Program& p, uint64_t seed) {
  std::mt19937_64 common(seed), own(seed * 31 + static_cast<uint64_t>(p.rank));
  std::vector<int> everybody;
  for (int r = 0; r < p.size; ++r) everybody.push_back(r);
  std::vector<std::pair<uint32_t, std::vector<int>>> sets;
  for (int round = 0; round < rounds(); ++round) {
    if (common() % 10 == 0) {  // process sets come and go
      if (!sets.empty() && common() % 2) {
        p.expect(p.remove_set(sets.back().first), "removed");
        sets.pop_back();
      } else {
        std::vector<int> some;
        for (int r = 0; r < p.size; ++r) {
          if (common() % 2) some.push_back(r);
        }
        bool known = some.empty() || some == everybody;
        for (auto& s : sets) known = known || s.second == some;
        if (!known) sets.emplace_back(p.add_set(some), some);
      }
    }
    const uint64_t kind_of_round = common() % 12 == 0 ? common() : 7;  // mostly the same step again
    const int n = 1 + static_cast<int>(kind_of_round % 13);
    const bool shuffled = round % 3 != 0;  // unnamed operations match by order, so they are used in the other rounds only
    std::vector<std::function<void(std::vector<Pending>*)>> named;
    for (int i = 0; i < n; ++i) {
      named.push_back([&, i](auto* out) { submit_one(p, seed + kind_of_round, i, !shuffled, 0, everybody, out); });
    }
    for (auto& [id, ranks] : sets) {
      if (std::find(ranks.begin(), ranks.end(), p.rank) == ranks.end()) continue;
      const uint32_t set = id;
      const std::vector<int>* members = &ranks;
      named.push_back([&, set, members](auto* out) { submit_one(p, seed + kind_of_round, 100, false, set, *members, out); });
    }
    if (shuffled) std::shuffle(named.begin(), named.end(), own);
    std::vector<Pending> pending;
    for (auto& f : named) f(&pending);
    std::shuffle(pending.begin(), pending.end(), own);
    for (auto& one : pending) {
      if (own() % 4 == 0) p.engine.poll(*one.task->op);
      p.wait(*one.task);
      one.check(*one.task);
    }
    if (own() % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 3000));
  }
}

}  // namespace

TEST_CASE("long random programs") {
  uint64_t seed = 1;
  for (Layout layout : kLayouts) {
    for (int size : {2, 3, 4, 5, 8}) {
      for (size_t threshold : {size_t{128} << 20, size_t{2000}, size_t{0}}) {
        Settings settings = crowded();
        settings.fusion_threshold = threshold;
        settings.spins = size % 2 ? 0 : 50;
        ++seed;
        CAPTURE(name_of(layout));
        CAPTURE(size);
        CAPTURE(threshold);
        CAPTURE(seed);
        EngineWorld world(size, {layout, settings});
        REQUIRE(run(world, [&](Program& p) { program(p, seed); }) == "");
      }
    }
  }
}
