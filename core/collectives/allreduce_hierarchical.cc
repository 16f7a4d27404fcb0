// Inside the hosts first, then between them, then inside again: only one copy of the data leaves a host. The data are cut into
// slices, one for each member that every host has (comm.slices). Through shared memory each of the first members reduces its
// slice for the host; the members with one index on all hosts then reduce that slice between the hosts, all slices at the same
// time over connections of their own; in the end the slices are gathered inside the host.
//
// Cost, H hosts, L members each, l = cost of shared memory, N' = N / L: l(N) + T(H, N') + l(N), where T is recursive doubling for
// small slices, the pairwise algorithm for few hosts, for more Rabenseifner when H is a power of two. T's three algorithms add in
// the same order, so the choice among them does not show in the result.
// Order: THE order among the members of a host, then THE order among the hosts. Element by element, so slices do not show either.
// 16-bit floats are float32 until the last addition, because the hosts' sums must not be rounded before they are added; the result of large
// slices is what travels in 16 bits between the hosts.
// Source: N. Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation performance",
// IPDPS 2000; slices: M. Cho et al., "BlueConnect", SysML 2019.
#include <algorithm>
#include <bit>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

constexpr size_t kSmall = 32 << 10;  // bytes of a slice up to which few messages matter more than few bytes
constexpr size_t kSmallForTwo = 512 << 10;  // two hosts send each other all of it either way
constexpr int kFewHosts = 8;  // so many connections at once are no burden, and the pairwise algorithm keeps them busy throughout

// The hosts' values of a slice, of type `acc`, to the result, of type `d`.
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
    return Status(Code::internal, "hierarchical allreduce on a process set without the communicators for it");
  }
  Comm& local = *comm.local;
  const DType acc = accumulator(d);
  const bool own = local.rank < comm.slices;  // do I work on a slice?
  auto begin = [&](int i) { return slice_at(count, comm.slices, std::min(i, comm.slices)); };
  const size_t first = begin(local.rank), mine = begin(local.rank + 1) - first;
  auto* memory = reinterpret_cast<size_t*>(comm.scratch->get(kSlotHierarchyCounts, local.size * sizeof(size_t)));
  const std::span<const size_t> parts(memory, local.size);
  for (int i = 0; i < local.size; ++i) memory[i] = begin(i + 1) - begin(i);

  std::byte* wide = widened(comm, kSlotHierarchyWide, data, count, d);
  std::byte* slice = wide + first * size_of(acc);  // only I use this part of my copy from now on
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
