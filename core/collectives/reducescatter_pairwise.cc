// Direct reduce-scatter: every rank sends each other rank its part of the data; the owner of a part reduces all
// contributions at once, in the canonical order (collectives/reduce.h), and scales. Large parts go in rounds, to bound
// the memory for contributions that wait for the reduction.
//
// Cost: (P-1) * alpha + (P-1)/P * N * (beta + gamma); the alphas overlap within a window of peers, and are paid once
// per round. 16-bit floats are sent unchanged and added in float32.
// Source: the pairwise exchange of R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication
// Operations in MPICH", IJHPCA 19(1), 2005.
#include <algorithm>

#include "collectives/collectives.h"
#include "collectives/pairwise.h"

namespace hvd {
namespace {

// Return the elements of each part that one round handles.
size_t round_count(int size, DType d) { return block_of_contributions(static_cast<size_t>(size)) / size_of(d); }

}  // namespace

Status reducescatter_pairwise(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType d, ReduceOp op,
                              const Scale& scale) {
  const size_t n = static_cast<size_t>(comm.size), element = size_of(d), mine = counts[comm.rank];
  auto* offsets = reinterpret_cast<size_t*>(comm.scratch->get(kSlotOffsets, n * sizeof(size_t)));
  for (size_t i = 0, sum = 0; i < n; sum += counts[i++]) offsets[i] = sum;
  const size_t largest = *std::max_element(counts.begin(), counts.end());
  const size_t block = std::min(round_count(comm.size, d), std::max<size_t>(largest, 1));
  std::byte* theirs = comm.scratch->get(kSlotTheirs, n * std::min(block, std::max<size_t>(mine, 1)) * element);
  auto** sources = reinterpret_cast<const std::byte**>(comm.scratch->get(kSlotSources, n * sizeof(std::byte*)));

  for (size_t first = 0; first < largest; first += block) {
    auto part = [&](int rank) { return std::min(block, counts[rank] - std::min(first, counts[rank])); };
    const size_t my_part = part(comm.rank);
    for (size_t i = 0; i < n; ++i) sources[i] = theirs + i * my_part * element;
    sources[comm.rank] = in + (offsets[comm.rank] + first) * element;
    HVD_RETURN_IF_ERROR(with_every_peer(comm, [&](int peer) {
      return Transfer{peer, ConstBytes(in + (offsets[peer] + first) * element, part(peer) * element),
                      Bytes(theirs + static_cast<size_t>(peer) * my_part * element, my_part * element)};
    }));
    if (my_part > 0) reduce_many(d, op, out + first * element, {sources, n}, my_part, scale);
  }
  return {};
}

}  // namespace hvd
