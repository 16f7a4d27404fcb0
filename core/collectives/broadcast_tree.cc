// Binomial tree: the root sends to the rank half the set away, then each of the two serves one half, and so on. Fewest
// steps, so best for small data.
//
// Cost: ceil(log2(P)) * (alpha + N * beta).
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
// 19(1), 2005.
#include <bit>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

Status broadcast_tree(Comm& comm, std::byte* data, size_t bytes, int root) {
  if (bytes == 0 || comm.size == 1) return {};
  const unsigned size = static_cast<unsigned>(comm.size);
  // Position in the tree; the root has 0.
  const unsigned place = static_cast<unsigned>((comm.rank - root + comm.size) % comm.size);
  auto rank_at = [&](unsigned p) { return static_cast<int>((p + static_cast<unsigned>(root)) % size); };
  // The parent of a place has its lowest bit cleared; a child has one lower bit set.
  const unsigned lowest = place == 0 ? std::bit_ceil(size) : place & (~place + 1);
  if (place != 0) HVD_RETURN_IF_ERROR(recv_from(comm, rank_at(place - lowest), {data, bytes}));
  for (unsigned bit = lowest / 2; bit > 0; bit /= 2) {  // the largest subtree first, because it is the deepest
    if (place + bit < size) HVD_RETURN_IF_ERROR(send_to(comm, rank_at(place + bit), {data, bytes}));
  }
  return {};
}

}  // namespace hvd
