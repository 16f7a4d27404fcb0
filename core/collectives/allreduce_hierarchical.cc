// Hierarchical allreduce: inside the hosts, then between them, then inside again, so that only one copy of the data
// leaves a host. The data are split into slices, one for each local index that every host has (comm.slices). Each
// member with such an index reduces its slice for the host through shared memory. The members with the same index on
// all hosts then reduce that slice between the hosts, with all slices in parallel over separate connections. Finally
// the slices are gathered inside the host.
//
// The cost for H hosts with L members each is l(N) + T(H, N / L) + l(N), where l is the cost in shared memory. T is the
// cost of recursive doubling for small slices, of the pairwise algorithm for few hosts, and of Rabenseifner's algorithm
// for more hosts if H is a power of two. These three add in the same order, so the choice does not affect the result.
// Values are added in the canonical order among the members of a host, then among the hosts. The order holds per
// element, so slices do not affect the result either. 16-bit floats stay in float32 until the last addition, because
// the hosts' sums must not be rounded before they are added. Only the result of large slices is sent as 16 bits between
// the hosts.
// Sources: N. Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
// performance", IPDPS 2000. For slices: M. Cho et al., "BlueConnect", SysML 2019.
#include <algorithm>
#include <bit>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

// Slices up to this many bytes use recursive doubling, because the number of messages matters more than their size.
constexpr size_t kSmall = 32 << 10;
constexpr size_t kSmallForTwo = 512 << 10;  // The same limit for two hosts, which send each other all data with either algorithm.
constexpr int kFewHosts = 8;  // Up to this many hosts the pairwise algorithm can keep all connections busy at once.

// Reduce a slice between the hosts. The values have type `acc`, and the result has type `d`.
Status between_hosts(Comm& cross, std::byte* slice, DType acc, std::byte* result, DType d, size_t count, ReduceOp op,
                     const BetweenHosts& other) {
  const bool small = count * size_of(acc) <= (cross.size == 2 ? kSmallForTwo : kSmall);
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
  const bool own = local.rank < comm.slices;  // true if this rank owns a slice
  auto begin = [&](int i) { return slice_at(count, comm.slices, std::min(i, comm.slices)); };
  const size_t first = begin(local.rank), mine = begin(local.rank + 1) - first;
  auto* memory = reinterpret_cast<size_t*>(comm.scratch->get(kSlotHierarchyCounts, local.size * sizeof(size_t)));
  const std::span<const size_t> parts(memory, local.size);
  for (int i = 0; i < local.size; ++i) memory[i] = begin(i + 1) - begin(i);

  std::byte* wide = widened(comm, kSlotHierarchyWide, data, count, d);
  std::byte* slice = wide + first * size_of(acc);  // from here on, only this rank uses this part of its copy
  if (local.size > 1) {
    std::byte* sum = comm.scratch->get(kSlotHierarchySlice, mine * size_of(acc));
    HVD_RETURN_IF_ERROR(reducescatter_shm(local, wide, sum, parts, acc, op, {}));
    slice = sum;
  }
  std::byte* result = data + first * size_of(d);
  if (own) HVD_RETURN_IF_ERROR(between_hosts(*comm.cross, slice, acc, result, d, mine, op, other));
  if (local.size == 1) return {};
  for (int i = 0; i < local.size; ++i) memory[i] *= size_of(d);
  return allgather_shm(local, result, data, parts);
}

Status allreduce_hierarchical(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  return allreduce_hierarchical_by(nullptr, comm, data, count, d, op);
}

}  // namespace hvd
