#include "plan/algorithms.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

using namespace hvd;

namespace {

constexpr size_t kBytes[] = {0, 1, 4096, 16 << 10, (16 << 10) + 1, 1 << 20, 64 << 20, size_t{8} << 30};

WorldShape flat(int size) {
  Topology t;
  std::vector<int> host_of(size);
  for (int r = 0; r < size; ++r) host_of[r] = r;
  REQUIRE(Topology::make(0, host_of, &t).ok());
  return WorldShape::of(t);
}

WorldShape on_hosts(std::vector<int> host_of, bool shared_memory = true) {
  Topology t;
  REQUIRE(Topology::make(0, host_of, &t).ok());
  return WorldShape::of(t, shared_memory);
}

std::vector<WorldShape> worlds() {
  std::vector<WorldShape> all = {on_hosts({0}), on_hosts({0, 0, 0}), on_hosts({0, 0, 0}, false), on_hosts({0, 0, 1}),
                                 on_hosts({0, 1, 1}, false)};
  for (int size : {2, 3, 4, 8, 9, 16, 17, 64, 65, 100, 128, 1000}) all.push_back(flat(size));
  return all;
}

Overrides parsed(std::string_view text) {
  Overrides o;
  const Status s = Overrides::parse(text, &o);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return o;
}

std::string refused(std::string_view text) {
  Overrides o;
  const Status s = Overrides::parse(text, &o);
  CHECK(s.code() == Code::invalid_argument);
  return s.message();
}

}  // namespace

TEST_CASE("every world finds an existing algorithm that can run in it") {
  for (const WorldShape& world : worlds()) {
    for (int c = 0; c < kCollectiveCount; ++c) {
      for (DType d : {DType::float32, DType::int32}) {
        for (size_t bytes : kBytes) {
          const auto collective = static_cast<Collective>(c);
          const Algorithm a = select(collective, d, bytes, world);
          const auto existing = algorithms_of(collective);
          CHECK(std::find(existing.begin(), existing.end(), a) != existing.end());
          CHECK(runs_in(a, world));
        }
      }
    }
  }
}

TEST_CASE("for floats, all sizes of one world are added in the same order") {
  for (const WorldShape& world : worlds()) {
    for (Collective c : {Collective::allreduce, Collective::reducescatter, Collective::adasum}) {
      for (DType d : {DType::float16, DType::float32, DType::float64, DType::bfloat16}) {
        std::set<Order> orders;
        for (size_t bytes : kBytes) orders.insert(order_of(c, select(c, d, bytes, world)));
        CHECK(orders.size() == 1);
        CHECK(orders.count(Order::by_slice) == 0);
      }
    }
  }
}

TEST_CASE("each choice can be reached, and the last one of each place matches everything") {
  std::set<const Choice*> used;
  for (const WorldShape& world : worlds()) {
    for (int c = 0; c < kCollectiveCount; ++c) {
      const Choice* last = nullptr;
      for (const Choice& choice : choices()) {
        if (choice.collective == static_cast<Collective>(c) && matches(choice.where, world)) last = &choice;
      }
      REQUIRE(last);
      CHECK(last->values == Values::any);
      CHECK(last->sizes == Sizes::any);
      CHECK(last->ranks == std::numeric_limits<int>::max());
      CHECK(last->bytes == nullptr);
    }
  }
  for (const Choice& choice : choices()) {
    for (const WorldShape& world : worlds()) {
      for (DType d : {DType::float32, DType::int32}) {
        for (size_t bytes : kBytes) {
          const auto first = std::ranges::find_if(choices(), [&](const Choice& c) {
            return c.collective == choice.collective && matches(c.where, world) && (c.values == Values::any || !is_float(d)) &&
                   (c.sizes == Sizes::any || world.power_of_two) && world.size <= c.ranks && (!c.bytes || bytes <= Tuning().*c.bytes);
          });
          if (&*first == &choice && select(choice.collective, d, bytes, world) == choice.algorithm) used.insert(&choice);
        }
      }
    }
  }
  CHECK(used.size() == choices().size());
}

TEST_CASE("each bound of the table is the last size that still goes that way") {
  const Tuning t;
  struct Case {
    DType d;
    int ranks;
    size_t bytes;
    Algorithm want;
  };
  constexpr DType f = DType::float32, i = DType::int32;
  constexpr auto doubling = Algorithm::recursive_doubling, pairwise = Algorithm::pairwise, rabenseifner = Algorithm::rabenseifner;
  const size_t large = 64 << 20;
  for (const Case& c : std::initializer_list<Case>{{f, 2, t.doubling_bytes + 1, doubling},
                                                   {f, 2, t.pair_bytes, doubling},
                                                   {f, 2, t.pair_bytes + 1, pairwise},
                                                   {f, 3, t.doubling_bytes, doubling},
                                                   {f, 3, t.doubling_bytes + 1, pairwise},
                                                   {f, 3, t.pair_bytes, pairwise},
                                                   {f, 8, t.doubling_bytes, doubling},
                                                   {f, 8, t.doubling_bytes + 1, pairwise},
                                                   {f, 8, large, pairwise},
                                                   {i, 8, large, pairwise},
                                                   {i, 9, large, Algorithm::ring},
                                                   {i, 16, large, Algorithm::ring},
                                                   {f, 9, large, pairwise},
                                                   {f, 16, t.doubling_bytes, doubling},
                                                   {f, 16, t.doubling_bytes + 1, rabenseifner},
                                                   {f, 63, large, pairwise},
                                                   {f, 64, large, rabenseifner},
                                                   {f, 65, large, rabenseifner}}) {
    CAPTURE(c.ranks);
    CAPTURE(c.bytes);
    CHECK(name_of(select(Collective::allreduce, c.d, c.bytes, flat(c.ranks))) == name_of(c.want));
  }
  auto broadcast = [](const WorldShape& world, size_t bytes) { return name_of(select(Collective::broadcast, f, bytes, world)); };
  CHECK(broadcast(flat(2), large) == "tree");
  CHECK(broadcast(flat(3), t.flat_tree_bytes) == "tree");
  CHECK(broadcast(flat(3), t.flat_tree_bytes + 1) == "pipelined");
  CHECK(broadcast(on_hosts({0, 0, 1}), t.tree_bytes) == "tree");
  CHECK(broadcast(on_hosts({0, 0, 1}), t.tree_bytes + 1) == "pipelined");
}

TEST_CASE("the user's choice wins where it can run") {
  const Overrides o = parsed(" allreduce = ring, broadcast=tree ,");
  CHECK(select(Collective::allreduce, DType::float32, 1, flat(4), o) == Algorithm::ring);
  CHECK(select(Collective::broadcast, DType::float32, 100 << 20, flat(4), o) == Algorithm::tree);
  CHECK(select(Collective::allgather, DType::float32, 1, flat(4), o) == Algorithm::ring);
  CHECK(select(Collective::allreduce, DType::float32, 1, on_hosts({0, 0}), o) == Algorithm::shm);  // no links there
  CHECK(select(Collective::allreduce, DType::float32, 1 << 20, flat(4), parsed("allreduce=hierarchical")) == Algorithm::pairwise);
  for (const auto& wanted : parsed("  ").wanted) CHECK_FALSE(wanted.has_value());
}

TEST_CASE("the algorithms for comparison are never chosen, but can be asked for") {
  for (const Choice& choice : choices()) {
    CHECK(choice.algorithm != Algorithm::naive);
    CHECK(choice.algorithm != Algorithm::driver);
    CHECK_FALSE((choice.collective == Collective::allreduce && choice.algorithm == Algorithm::tree));
  }
  CHECK(select(Collective::allreduce, DType::float32, 1 << 20, flat(4), parsed("allreduce=naive")) == Algorithm::naive);
  CHECK(select(Collective::allreduce, DType::float32, 1 << 20, flat(4), parsed("allreduce=driver")) == Algorithm::driver);
  CHECK(select(Collective::allreduce, DType::float32, 1 << 20, flat(4), parsed("allreduce=tree")) == Algorithm::tree);
  CHECK(select(Collective::allreduce, DType::float32, 1 << 20, on_hosts({0, 0}), parsed("allreduce=naive")) == Algorithm::shm);
}

TEST_CASE("a wrong choice names the part and what is accepted") {
  CHECK(refused("allreduce") ==
        "'allreduce' in the choice of algorithms must have the form collective=algorithm, as in 'allreduce=ring,broadcast=tree'");
  CHECK(refused("broadcast=tree,allreduce=pipelined") ==
        "'allreduce=pipelined' in the choice of algorithms: the algorithm of allreduce must be one of shm, recursive_doubling, "
        "rabenseifner, pairwise, ring, hierarchical, tree, driver, naive, got 'pipelined'");
  CHECK(refused("reduce=ring") ==
        "'reduce=ring' in the choice of algorithms: the collective must be one of allreduce, broadcast, allgather, alltoall, "
        "reducescatter, barrier, adasum, got 'reduce'");
}
