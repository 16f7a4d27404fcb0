#include "plan/algorithms.h"

#include <bit>

#include "plan/text.h"

namespace hvd {
namespace {

constexpr int kAnyRanks = std::numeric_limits<int>::max();
constexpr size_t Tuning::* kAnyBytes = nullptr;

using C = Collective;
using A = Algorithm;
using W = Where;
using T = Tuning;

// clang-format off
constexpr Row kTable[] = {
    // collective      where      values            sizes                 ranks      bytes                algorithm
    {C::allreduce,     W::local,  Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::shm},
    {C::allreduce,     W::nested, Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::hierarchical},
    {C::allreduce,     W::flat,   Values::any,      Sizes::any,           kAnyRanks, &T::doubling_bytes,  A::recursive_doubling},
    // Two ranks send each other everything with either algorithm; recursive doubling does so in one step instead of
    // two.
    {C::allreduce,     W::flat,   Values::any,      Sizes::any,           2,         &T::pair_bytes,       A::recursive_doubling},
    {C::allreduce,     W::flat,   Values::any,      Sizes::any,           8,         kAnyBytes,           A::pairwise},
    {C::allreduce,     W::flat,   Values::integers, Sizes::any,           kAnyRanks, kAnyBytes,           A::ring},
    {C::allreduce,     W::flat,   Values::any,      Sizes::powers_of_two, kAnyRanks, kAnyBytes,           A::rabenseifner},
    // Folding costs Rabenseifner two extra transfers of all data; pairwise needs a connection to every rank.
    {C::allreduce,     W::flat,   Values::any,      Sizes::any,           64,        kAnyBytes,           A::pairwise},
    {C::allreduce,     W::flat,   Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::rabenseifner},

    {C::broadcast,     W::local,  Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::shm},
    {C::broadcast,     W::nested, Values::any,      Sizes::any,           2,         kAnyBytes,           A::tree},
    {C::broadcast,     W::nested, Values::any,      Sizes::any,           kAnyRanks, &T::tree_bytes,      A::tree},
    {C::broadcast,     W::nested, Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::pipelined},
    {C::broadcast,     W::flat,   Values::any,      Sizes::any,           2,         kAnyBytes,           A::tree},
    {C::broadcast,     W::flat,   Values::any,      Sizes::any,           kAnyRanks, &T::flat_tree_bytes, A::tree},
    {C::broadcast,     W::flat,   Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::pipelined},

    {C::allgather,     W::local,  Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::shm},
    {C::allgather,     W::nested, Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::ring},
    {C::allgather,     W::flat,   Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::ring},

    {C::alltoall,      W::local,  Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::shm},
    {C::alltoall,      W::nested, Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::pairwise},
    {C::alltoall,      W::flat,   Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::pairwise},

    {C::reducescatter, W::local,  Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::shm},
    {C::reducescatter, W::nested, Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::pairwise},
    {C::reducescatter, W::flat,   Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::pairwise},

    {C::barrier,       W::local,  Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::shm},
    {C::barrier,       W::nested, Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::dissemination},
    {C::barrier,       W::flat,   Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::dissemination},

    // Adasum is an allreduce of another kind; on one host it uses shared memory.
    {C::adasum,        W::local,  Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::halving},
    {C::adasum,        W::nested, Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::halving},
    {C::adasum,        W::flat,   Values::any,      Sizes::any,           kAnyRanks, kAnyBytes,           A::halving},
};
// clang-format on

constexpr std::string_view kCollectiveNames[kCollectiveCount] = {"allreduce",     "broadcast", "allgather", "alltoall",
                                                                 "reducescatter", "barrier",   "adasum"};
constexpr std::string_view kAlgorithmNames[kAlgorithmCount] = {
    "shm",  "recursive_doubling", "rabenseifner",  "pairwise", "ring",   "hierarchical",
    "tree", "pipelined",          "dissemination", "naive",    "driver", "halving"};

// The last three allreduces are for comparison (src/horovod/benchmark) and never in the table.
constexpr A kAllreduce[] = {A::shm,  A::recursive_doubling, A::rabenseifner, A::pairwise, A::ring, A::hierarchical, A::tree, A::driver,
                            A::naive};
constexpr A kBroadcast[] = {A::shm, A::tree, A::pipelined};
constexpr A kAllgather[] = {A::shm, A::ring};
constexpr A kDirect[] = {A::shm, A::pairwise};
constexpr A kBarrier[] = {A::shm, A::dissemination};
constexpr A kAdasum[] = {A::halving};
constexpr std::span<const A> kExisting[kCollectiveCount] = {kAllreduce, kBroadcast, kAllgather, kDirect, kDirect, kBarrier, kAdasum};

Where where(const WorldShape& world) { return world.all_local ? W::local : world.nested ? W::nested : W::flat; }

Status parse_one(std::string_view item, Overrides* out) {
  const std::string shown = quoted(item).append(" in the choice of algorithms");
  const size_t equals = item.find('=');
  if (equals == item.npos) {
    return Status(Code::invalid_argument, shown + " must have the form collective=algorithm, as in 'allreduce=ring,broadcast=tree'");
  }
  const std::string_view left = trimmed(item.substr(0, equals)), right = trimmed(item.substr(equals + 1));
  for (int c = 0; c < kCollectiveCount; ++c) {
    if (kCollectiveNames[c] != left) continue;
    for (A a : kExisting[c]) {
      if (name_of(a) != right) continue;
      out->wanted[c] = a;
      return {};
    }
    return Status(Code::invalid_argument, shown + ": the algorithm of " + std::string(left) + " must be one of " +
                                              listed(kExisting[c], [](A a) { return name_of(a); }) + ", got " + quoted(right));
  }
  return Status(Code::invalid_argument, shown + ": the collective must be one of " +
                                            listed(std::span<const std::string_view>(kCollectiveNames), [](std::string_view name) {
    return name;
  }) + ", got " + quoted(left));
}

}  // namespace

std::string_view name_of(Collective c) { return kCollectiveNames[static_cast<size_t>(c)]; }
std::string_view name_of(Algorithm a) { return kAlgorithmNames[static_cast<size_t>(a)]; }
std::span<const Algorithm> algorithms_of(Collective c) { return kExisting[static_cast<size_t>(c)]; }
std::span<const Row> table() { return kTable; }

WorldShape WorldShape::of(const Topology& t, bool shared_memory) {
  WorldShape shape;
  shape.size = t.size;
  shape.hosts = t.hosts();
  shape.all_local = t.hosts() == 1 && shared_memory;
  shape.links = !shape.all_local;
  shape.nested = t.nested() && shared_memory;
  shape.power_of_two = std::has_single_bit(static_cast<unsigned>(t.size));
  return shape;
}

Status Overrides::parse(std::string_view text, Overrides* out) {
  Overrides result;
  HVD_RETURN_IF_ERROR(each_item(text, [&](std::string_view item) { return parse_one(item, &result); }));
  *out = result;
  return {};
}

Order order_of(Collective c, Algorithm a) {
  if (c != C::allreduce && c != C::reducescatter && c != C::adasum) return Order::none;
  return a == A::ring ? Order::by_slice : a == A::hierarchical ? Order::by_host : Order::the_order;
}

bool runs_in(Algorithm a, const WorldShape& world) {
  switch (a) {
    case A::shm: return world.all_local;
    case A::hierarchical: return world.nested;
    case A::halving: return true;
    default: return world.links;
  }
}

Algorithm select(Collective c, DType d, size_t bytes, const WorldShape& world, const Overrides& overrides, const Tuning& tuning) {
  const auto& wanted = overrides.wanted[static_cast<size_t>(c)];
  if (wanted && runs_in(*wanted, world)) return *wanted;
  for (const Row& row : kTable) {
    if (row.collective == c && row.where == where(world) && (row.values == Values::any || !is_float(d)) &&
        (row.sizes == Sizes::any || world.power_of_two) && world.size <= row.ranks && (!row.bytes || bytes <= tuning.*row.bytes)) {
      return row.algorithm;
    }
  }
  return A::shm;  // not reached: the last row of each collective and place matches everything (checked by a test)
}

}  // namespace hvd
