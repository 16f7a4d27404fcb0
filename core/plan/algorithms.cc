#include "plan/algorithms.h"

#include <bit>

#include "plan/text.h"

namespace hvd {
namespace {

constexpr int kAnyRanks = std::numeric_limits<int>::max();
constexpr size_t Tuning::* kAnyBytes = nullptr;

#define HVD_CHOICE(collective, where, values, sizes, ranks, bytes, algorithm) \
  {Collective::collective, Where::where, Values::values, Sizes::sizes, ranks, bytes, Algorithm::algorithm},
constexpr Choice kChoices[] = {HVD_CHOICES(HVD_CHOICE)};
#undef HVD_CHOICE

constexpr std::string_view kCollectiveNames[kCollectiveCount] = {"allreduce",     "broadcast", "allgather", "alltoall",
                                                                 "reducescatter", "barrier",   "adasum"};

#define HVD_NAME(name, where) #name,
constexpr std::string_view kAlgorithmNames[] = {HVD_ALGORITHMS(HVD_NAME)};
#undef HVD_NAME
#define HVD_PLACE(name, where) Where::where,
constexpr Where kPlaces[] = {HVD_ALGORITHMS(HVD_PLACE)};
#undef HVD_PLACE

// Algorithms of all collectives, grouped by collective.
#define HVD_COLLECTIVE(collective, algorithm, formula, seconds) Collective::collective,
constexpr Collective kCollectives[] = {HVD_COSTS(HVD_COLLECTIVE)};
#undef HVD_COLLECTIVE
#define HVD_ALGORITHM(collective, algorithm, formula, seconds) Algorithm::algorithm,
constexpr Algorithm kAlgorithms[] = {HVD_COSTS(HVD_ALGORITHM)};
#undef HVD_ALGORITHM

struct Range {
  size_t first, count;
};
using Ranges = std::array<Range, kCollectiveCount>;

// Return the range of each collective's rows, which are adjacent, in a table of `n` rows.
template <class CollectiveOf>
constexpr Ranges ranges_of(size_t n, CollectiveOf collective_of) {
  Ranges ranges{};
  for (size_t i = 0; i < n; ++i) {
    Range& range = ranges[static_cast<size_t>(collective_of(i))];
    if (range.count++ == 0) range.first = i;
  }
  return ranges;
}
constexpr Ranges kAlgorithmsOf = ranges_of(std::size(kCollectives), [](size_t i) { return kCollectives[i]; });
constexpr Ranges kChoicesOf = ranges_of(std::size(kChoices), [](size_t i) { return kChoices[i].collective; });

Status parse_one(std::string_view item, Overrides* out) {
  const std::string shown = quoted(item).append(" in the choice of algorithms");
  const size_t equals = item.find('=');
  if (equals == item.npos) {
    return Status(Code::invalid_argument, shown + " must have the form collective=algorithm, as in 'allreduce=ring,broadcast=tree'");
  }
  const std::string_view left = trimmed(item.substr(0, equals)), right = trimmed(item.substr(equals + 1));
  for (int c = 0; c < kCollectiveCount; ++c) {
    if (kCollectiveNames[c] != left) continue;
    const std::span<const Algorithm> existing = algorithms_of(static_cast<Collective>(c));
    for (Algorithm a : existing) {
      if (name_of(a) != right) continue;
      out->wanted[c] = a;
      return {};
    }
    return Status(Code::invalid_argument, shown + ": the algorithm of " + std::string(left) + " must be one of " +
                                              listed(existing, [](Algorithm a) { return name_of(a); }) + ", got " + quoted(right));
  }
  return Status(Code::invalid_argument, shown + ": the collective must be one of " +
                                            listed(std::span<const std::string_view>(kCollectiveNames), [](std::string_view name) {
    return name;
  }) + ", got " + quoted(left));
}

}  // namespace

std::string_view name_of(Collective c) { return kCollectiveNames[static_cast<size_t>(c)]; }
std::string_view name_of(Algorithm a) { return kAlgorithmNames[static_cast<size_t>(a)]; }
std::span<const Algorithm> algorithms_of(Collective c) {
  const Range range = kAlgorithmsOf[static_cast<size_t>(c)];
  return {kAlgorithms + range.first, range.count};
}
std::span<const Choice> choices() { return kChoices; }

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
  if (c != Collective::allreduce && c != Collective::reducescatter && c != Collective::adasum) return Order::none;
  return a == Algorithm::ring ? Order::by_slice : a == Algorithm::hierarchical ? Order::by_host : Order::the_order;
}

bool matches(Where where, const WorldShape& world) {
  switch (where) {
    case Where::local: return world.all_local;
    case Where::nested: return !world.all_local && world.nested;
    case Where::flat: return !world.all_local && !world.nested;
    case Where::links: return !world.all_local;
    default: return true;
  }
}

bool runs_in(Algorithm a, const WorldShape& world) {
  const Where where = kPlaces[static_cast<size_t>(a)];
  return where == Where::nested ? world.nested : where == Where::links ? world.links : matches(where, world);
}

Algorithm select(Collective c, DType d, size_t bytes, const WorldShape& world, const Overrides& overrides, const Tuning& tuning) {
  const auto& wanted = overrides.wanted[static_cast<size_t>(c)];
  if (wanted && runs_in(*wanted, world)) return *wanted;
  const Range range = kChoicesOf[static_cast<size_t>(c)];
  for (const Choice& choice : std::span(kChoices + range.first, range.count)) {
    if (matches(choice.where, world) && (choice.values == Values::any || !is_float(d)) &&
        (choice.sizes == Sizes::any || world.power_of_two) && world.size <= choice.ranks &&
        (!choice.bytes || bytes <= tuning.*choice.bytes)) {
      return choice.algorithm;
    }
  }
  // Unreachable: a collective's last row for each kind of topology matches everything (checked by a test).
  return Algorithm::shm;
}

}  // namespace hvd
