// Direct reduce-scatter, then direct allgather: every rank sends each other one its part of the data, reduces all contributions
// to its own part at once, and sends the result to everybody. Two rounds of messages whatever P is, no forwarding, and the owner
// sees all contributions, so it can add them in any order it likes: it takes THE order. Good for large data on few ranks and on
// any P.
//
// Cost: 2 (P-1) * alpha + 2 (P-1)/P * N * beta + (P-1)/P * N * gamma. The alphas overlap within a window of peers.
// 16-bit floats travel as themselves both ways: what travels is original values and final results, the sums stay with the owner.
// Source: the direct exchange of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
// MPICH", IJHPCA 19(1), 2005 (pairwise exchange for reduce-scatter).
#include "collectives/collectives.h"
#include "collectives/pairwise.h"

namespace hvd {

Status allreduce_pairwise(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  auto* counts = reinterpret_cast<size_t*>(comm.scratch->get(kSlotCounts, comm.size * sizeof(size_t)));
  for (int i = 0; i < comm.size; ++i) counts[i] = slice_at(count, comm.size, i + 1) - slice_at(count, comm.size, i);
  auto slice = [&](int i) { return Bytes(data + slice_at(count, comm.size, i) * size_of(d), counts[i] * size_of(d)); };
  const Bytes mine = slice(comm.rank);
  HVD_RETURN_IF_ERROR(reducescatter_pairwise(comm, data, mine.data(), {counts, static_cast<size_t>(comm.size)}, d, op, {}));
  return with_every_peer(comm, [&](int peer) { return Transfer{peer, mine, slice(peer)}; });
}

}  // namespace hvd
