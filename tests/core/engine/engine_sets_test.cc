// Whole engines, one thread per rank: process sets and join.
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
        // Ranks with more steps than s have not joined.
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
  check_ranks(3, {Layout::one_node, crowded()}, [&](Program& p) {
    if (p.rank > 0) {
      p.equal(p.sum("a", 1), 2, "without rank 0");  // so rank 0 has joined
      TaskPtr t = p.submit(Program::request(Kind::broadcast, "b", {1}), Program::bytes_of<int32_t>({1}));
      const Status s = p.finish(*t);
      p.expect(s.code() == Code::mismatch && contains(s.message(), "rank 0") && contains(s.message(), "join"), s.message());
      p.equal(p.sum("c", 1), 2, "after the refusal");
    }
    p.last_joined();
  });
}

TEST_CASE("members add a set while the other ranks do nothing, and during a schedule") {
  check_ranks(3, {Layout::one_node, crowded()}, [&](Program& p) {
    if (p.rank != 1) {
      const uint32_t set = p.add_set({0, 2}, "first");
      p.equal(p.sum("in it", 1, 1, set), 2, "sum of the members");
    }
    for (int step = 0; step < 20; ++step) p.equal(p.sum("step", 1), 3, "all ranks");
    if (p.rank != 0) {
      const uint32_t set = p.add_set({1, 2}, "second");
      p.equal(p.sum("in it", 1, 1, set), 2, "sum of the other members");
    }
    p.equal(p.sum("step", 1), 3, "all ranks");
  });
}

TEST_CASE("operations that wait in a set that is removed fail") {
  check_ranks(3, {Layout::one_node, crowded()}, [&](Program& p) {
    const uint32_t set = p.add_set({0, 2});
    TaskPtr t;
    if (p.rank == 0) t = p.sum_async("never", 1, 1, set);
    p.barrier();
    p.expect(p.remove_set(set), "removed");
    if (t) p.expect(p.finish(*t).code() == Code::mismatch, "an operation of the removed set");
    p.equal(p.add_set({0, 2}), set, "the id is free again");
    if (p.rank != 1) p.equal(p.sum("never", 1, 1, set), 2, "the name is free again");
  });
}
