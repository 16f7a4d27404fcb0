// Choice of the algorithm for each collective: the first matching row of a table, or what the user has set with a text such as
// "allreduce=ring,broadcast=tree". The functions have no side effects.
//
// Invariant of the table, checked by a test: in a process set, all algorithms for float reductions add values in the same order. The bits
// of a result then depend neither on the size of a tensor nor on fusion.
#pragma once
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/status.h"
#include "plan/algorithm_table.h"
#include "plan/topology.h"
#include "plan/tuning.h"

namespace hvd {

enum class Collective : uint8_t { allreduce, broadcast, allgather, alltoall, reducescatter, barrier, adasum };
inline constexpr int kCollectiveCount = 7;
std::string_view name_of(Collective);

#define HVD_NAME(name, where) name,
enum class Algorithm : uint8_t { HVD_ALGORITHMS(HVD_NAME) };
#undef HVD_NAME
#define HVD_ONE(name, where) +1
inline constexpr int kAlgorithmCount = HVD_ALGORITHMS(HVD_ONE);
#undef HVD_ONE
std::string_view name_of(Algorithm);

std::span<const Algorithm> algorithms_of(Collective);

// Properties of a process set that determine which algorithms can run in it.
struct WorldShape {
  int size = 1;
  int hosts = 1;
  // True if all ranks of the set share this host's memory.
  bool all_local = false;
  // True if the ranks of the process set have links to each other.
  bool links = true;
  // True if the process set spans several hosts, some of which have several ranks that share memory (Topology::nested).
  bool nested = false;
  bool power_of_two = true;

  // Return these properties for a topology. `shared_memory` is true if ranks on one host can use shared memory.
  static WorldShape of(const Topology& topology, bool shared_memory = true);
};

// Algorithms that the user has chosen instead of those in the table.
struct Overrides {
  std::array<std::optional<Algorithm>, kCollectiveCount> wanted;
  // Parse "collective=algorithm" items separated by commas; an empty string means no overrides. Errors name the invalid
  // part and the accepted values.
  static Status parse(std::string_view text, Overrides* out);
};

// Order of the additions in an algorithm's float reduction (collectives/reduce.h), or `none` where it does not matter.
enum class Order : uint8_t { none, the_order, by_host, by_slice };
Order order_of(Collective, Algorithm);

// True if `algorithm` can run in a process set with these properties.
bool runs_in(Algorithm, const WorldShape&);

// Select the algorithm. `bytes` is the size of the whole operation on one rank, in dtype `d`. An override that cannot run in this process
// set is ignored, because one setting applies to process sets of all topologies.
Algorithm select(Collective, DType d, size_t bytes, const WorldShape&, const Overrides& = {}, const Tuning& = {});

// Kinds of topologies in the table of choices. `local`: all ranks share one host's memory. `nested`: there are several hosts, some with
// several ranks that share memory. `flat`: all ranks use only links. `links`: nested or flat.
enum class Where : uint8_t { local, nested, flat, links, anywhere };
// True if a process set with these properties has the given kind of topology.
bool matches(Where, const WorldShape&);
enum class Values : uint8_t { any, integers };
enum class Sizes : uint8_t { any, powers_of_two };
struct Choice {
  Collective collective;
  Where where;
  Values values;
  Sizes sizes;
  // Maximum number of ranks for which the row matches.
  int ranks;
  // Field of Tuning that holds the maximum size in bytes for which the row matches. Null means no limit.
  size_t Tuning::* bytes;
  Algorithm algorithm;
};
std::span<const Choice> choices();

}  // namespace hvd
