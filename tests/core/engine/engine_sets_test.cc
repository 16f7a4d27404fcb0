// Whole engines, a thread a rank: process sets and join.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "../contains.h"
#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("join with uneven numbers of steps") {
  everywhere([](Program& p) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      const int steps = 3 + 4 * p.rank;
      for (int s = 0; s < steps; ++s) {
        // Those with more steps than s are still there.
        int present = 0;
        for (int r = 0; r < p.size; ++r) present += 3 + 4 * r > s ? 1 : 0;
        std::vector<TaskPtr> tasks;
        for (int i = 0; i < 3; ++i) tasks.push_back(p.sum_async("g" + std::to_string(i), 1, 10 + i));
        for (auto& t : tasks) {
          p.wait(*t);
          p.equal(t->at<int32_t>(0), present, "sum of those present in step " + std::to_string(s));
        }
      }
      p.equal(p.last_joined(), p.size - 1, "last to join");
    }
    p.equal(p.sum("after", 1), p.size, "after join");
  });
}

TEST_CASE("while a rank has joined, other operations are refused and allreduce goes on") {
  EngineWorld world(3, {Layout::one_node, crowded()});
  CHECK(run(world, [&](Program& p) {
    if (p.rank > 0) {
      p.equal(p.sum("a", 1), 2, "without rank 0");  // so rank 0 has joined
      TaskPtr t = p.submit(Program::request(Kind::broadcast, "b", {1}), Program::bytes_of<int32_t>({1}));
      const Status s = p.finish(*t);
      p.expect(s.code() == Code::mismatch && contains(s.message(), "rank 0") && contains(s.message(), "join"), s.message());
      p.equal(p.sum("c", 1), 2, "after the refusal");
    }
    p.last_joined();
  }) == "");
}

TEST_CASE("process sets: overlapping, mixed with the world, removed, added again") {
  for (Layout layout : kLayouts) {
    for (int size : {2, 3, 4, 5}) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      EngineWorld world(size, {layout, crowded()});
      CHECK(run(world, [&](Program& p) {
        for (int round = 0; round < 3; ++round) {
          std::vector<int> low, high;
          for (int r = 0; r < p.size; ++r) {
            if (r <= p.size / 2) low.push_back(r);
            if (r >= p.size / 2) high.push_back(r);
          }
          if (round == 1) std::swap(low, high);  // so ids are used again for other ranks
          auto member = [&](const std::vector<int>& s) { return std::find(s.begin(), s.end(), p.rank) != s.end(); };
          auto sum_of = [](const std::vector<int>& s) {
            int t = 0;
            for (int r : s) t += r + 1;
            return t;
          };
          if (low.size() == static_cast<size_t>(p.size)) low.pop_back();
          if (high.size() == static_cast<size_t>(p.size)) high.pop_back();
          const uint32_t a = p.add_set(low);
          const uint32_t b = low == high ? a : p.add_set(high);
          p.equal(a, 1u, "lowest free id");
          for (int step = 0; step < 12; ++step) {
            std::vector<std::pair<TaskPtr, int>> tasks;
            if (member(low)) tasks.emplace_back(p.sum_async("low", p.rank + 1, 100, a), sum_of(low));
            if (member(low)) tasks.emplace_back(p.sum_async("", p.rank + 1, 3, a), sum_of(low));
            tasks.emplace_back(p.sum_async("world", p.rank + 1, 50), total(p.size));
            if (member(high) && b != a) tasks.emplace_back(p.sum_async("high", p.rank + 1, 10, b), sum_of(high));
            if (p.rank % 2) std::reverse(tasks.begin(), tasks.end());
            for (auto& [t, want] : tasks) {
              p.wait(*t);
              p.equal(t->at<int32_t>(0), want, "round " + std::to_string(round) + ", '" + t->name + "' in step " + std::to_string(step));
            }
          }
          p.expect(p.remove_set(a), "removed");
          p.expect(!p.remove_set(a), "removed twice");
          if (b != a) p.expect(p.remove_set(b), "the other removed");
          TaskPtr t;
          Request q = Program::request(Kind::allreduce, "low", {1});
          q.set = a;
          p.expect(p.try_submit(q, std::vector<std::byte>(4), &t).code() == Code::invalid_argument, "accepted in a removed set");
        }
      }) == "");
    }
  }
}

TEST_CASE("operations that wait in a set that is removed fail") {
  EngineWorld world(3, {Layout::one_node, crowded()});
  CHECK(run(world, [&](Program& p) {
    const uint32_t set = p.add_set({0, 2});
    TaskPtr t;
    if (p.rank == 0) t = p.sum_async("never", 1, 1, set);
    p.barrier();
    p.expect(p.remove_set(set), "removed");
    if (t) p.expect(p.finish(*t).code() == Code::mismatch, "an operation of the removed set");
    p.equal(p.add_set({0, 2}), set, "the id is free again");
    if (p.rank != 1) p.equal(p.sum("never", 1, 1, set), 2, "the name is free again");
  }) == "");
}
