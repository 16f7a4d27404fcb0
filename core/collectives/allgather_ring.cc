// Ring allgather: every rank's block travels once around the ring and is sent on as it arrives. Each rank keeps two
// connections busy all the time, and blocks may differ in size.
//
// Cost: (P-1) * alpha + (P-1)/P * N * beta, where N is all blocks together; with one dominant block about N * beta.
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
// 19(1), 2005.
#include <cstring>

#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

Status allgather_ring(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> bytes) {
  const size_t n = static_cast<size_t>(comm.size);
  auto* offsets = reinterpret_cast<size_t*>(comm.scratch->get(kSlotOffsets, (n + 1) * sizeof(size_t)));
  offsets[0] = 0;
  for (size_t i = 0; i < n; ++i) offsets[i + 1] = offsets[i] + bytes[i];
  std::byte* mine = out + offsets[comm.rank];
  if (mine != in && bytes[comm.rank] > 0) std::memcpy(mine, in, bytes[comm.rank]);
  if (n == 1 || offsets[n] == 0) return {};
  return ring_pass(comm, out, {offsets, n + 1}, comm.rank, nullptr);
}

}  // namespace hvd
