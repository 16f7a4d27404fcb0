// Hierarchical allreduce: reduce within each host, then between hosts, then gather within each host. Only one copy of
// the data leaves a host. The data are split into comm.slices slices, one for each local index that exists on every
// host. Each rank with such an index reduces its slice for the host through shared memory. The ranks with the same
// index on all hosts then reduce their slice between the hosts. All slices are reduced in parallel over separate
// connections. Finally, each host gathers the slices.
//
// The cost for H hosts with L ranks each is l(N) + T(H, N / L) + l(N), where l is the cost in shared memory. T is the
// cost of the algorithm between hosts: recursive doubling for small slices, the pairwise algorithm for few hosts, and
// Rabenseifner's algorithm for more hosts if H is a power of two. These three add in the same order, so the choice does
// not affect the result. Values are added in the canonical order among the ranks of a host, then among the hosts. The
// order applies to each element, so the slices do not affect the result either. 16-bit floats stay in float32 until the
// last addition, because the hosts' sums must not be rounded before they are added. Only the result of large slices is
// sent as 16 bits between hosts. Sources: N. Karonis et al., "Exploiting hierarchy in parallel computer networks to
// optimize collective operation performance", IPDPS 2000. For slices: M. Cho et al., "BlueConnect", SysML 2019.
#include <algorithm>
#include <bit>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

// Maximum number of hosts for the pairwise algorithm, which keeps a connection to each of them busy.
constexpr int kFewHosts = 8;

// Reduce a slice between hosts, from values of type `acc` to a result of type `d`. Small slices use recursive doubling: it sends the fewest
// messages, whose number then matters more than their size.
Status between_hosts(const Tuning& tuning, Comm& cross, std::byte* slice, DType acc, std::byte* result, DType d, size_t count, ReduceOp op,
                     const BetweenHosts& other) {
  const bool small = count * size_of(acc) <= (cross.size == 2 ? tuning.slice_pair_bytes : tuning.slice_doubling_bytes);
  const bool halving = cross.size > kFewHosts && std::has_single_bit(static_cast<unsigned>(cross.size));
  if (!other && acc != d && cross.size > 1 && !small) {
    auto* sums = reinterpret_cast<float*>(slice);
    return halving ? allreduce_rabenseifner_sums(cross, sums, result, count, d, op)
                   : allreduce_pairwise_sums(cross, sums, result, count, d, op);
  }
  auto run = small ? allreduce_recursive_doubling : halving ? allreduce_rabenseifner : allreduce_pairwise;
  HVD_RETURN_IF_ERROR(other ? other(cross, slice, count, acc, op) : run(cross, slice, count, acc, op));
  if (acc != d) {
    narrow(d, result, reinterpret_cast<const float*>(slice), count);
  } else if (slice != result) {
    std::copy_n(slice, count * size_of(d), result);
  }
  return {};
}

}  // namespace

Status allreduce_hierarchical_by(const BetweenHosts& other, Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  if (!comm.local || comm.slices < 1 || comm.slices > comm.local->size || (!comm.cross && comm.local->rank < comm.slices)) {
    return Status(Code::internal, "hierarchical allreduce needs the process set's communicators within and between hosts");
  }
  Comm& local = *comm.local;
  const DType acc = accumulator(d);
  // True if this rank owns a slice.
  const bool own = local.rank < comm.slices;
  auto begin = [&](int i) { return slice_at(count, comm.slices, std::min(i, comm.slices)); };
  const size_t first = begin(local.rank), own_count = begin(local.rank + 1) - first;
  auto* memory = reinterpret_cast<size_t*>(comm.scratch->get(kSlotHierarchyCounts, local.size * sizeof(size_t)));
  const std::span<const size_t> parts(memory, local.size);
  for (int i = 0; i < local.size; ++i) memory[i] = begin(i + 1) - begin(i);

  std::byte* wide = widened(comm, kSlotHierarchyWide, data, count, d);
  // Memory of this rank's slice, which no other rank accesses.
  std::byte* slice = wide + first * size_of(acc);
  if (local.size > 1) {
    std::byte* sum = comm.scratch->get(kSlotHierarchySlice, own_count * size_of(acc));
    HVD_RETURN_IF_ERROR(reducescatter_shm(local, wide, sum, parts, acc, op, {}));
    slice = sum;
  }
  std::byte* result = data + first * size_of(d);
  if (own) HVD_RETURN_IF_ERROR(between_hosts(comm.tuning, *comm.cross, slice, acc, result, d, own_count, op, other));
  if (local.size == 1) return {};
  for (int i = 0; i < local.size; ++i) memory[i] *= size_of(d);
  return allgather_shm(local, result, data, parts);
}

Status allreduce_hierarchical(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  return allreduce_hierarchical_by(nullptr, comm, data, count, d, op);
}

}  // namespace hvd
