// Naive allreduce: every rank sends all its data to every rank and adds all contributions itself: one step, and P - 1
// times the data per rank. For comparison only; the table never chooses it.
//
// Cost: (P-1) * (alpha + N * (beta + gamma)). The alphas overlap within a window of peers. Large data go in rounds, to
// bound the memory for contributions that wait for the reduction.
// Order of the reduction: the canonical order (collectives/reduce.h). 16-bit floats are sent unchanged and added in
// float32.
// Source: the definition of the operation.
#include <algorithm>

#include "collectives/collectives.h"
#include "collectives/pairwise.h"

namespace hvd {

Status allreduce_naive(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const size_t n = static_cast<size_t>(comm.size), element = size_of(d);
  const size_t block = std::min(count, block_of_contributions(n) / element);
  std::byte* theirs = comm.scratch->get(kSlotTheirs, n * block * element);
  auto** sources = reinterpret_cast<const std::byte**>(comm.scratch->get(kSlotSources, n * sizeof(std::byte*)));
  for (size_t first = 0; first < count; first += block) {
    const Bytes mine(data + first * element, std::min(block, count - first) * element);
    for (size_t i = 0; i < n; ++i) sources[i] = theirs + i * block * element;
    auto transfer = [&](int peer) {
      return Transfer{peer, mine, Bytes(theirs + static_cast<size_t>(peer) * block * element, mine.size())};
    };
    HVD_RETURN_IF_ERROR(with_every_peer(comm, transfer));
    sources[comm.rank] = mine.data();
    reduce_many(d, op, mine.data(), {sources, n}, mine.size() / element, {});
  }
  return {};
}

}  // namespace hvd
