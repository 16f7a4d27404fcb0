// Pairwise all-to-all: every rank sends each other rank its part directly, to several peers at a time
// (collectives/pairwise.h). A slow pair does not delay the others of its window.
//
// Cost: (P-1) * alpha + (P-1)/P * N * beta; the alphas overlap within a window.
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
// 19(1), 2005 (pairwise exchange); the symmetric rounds are the circle method for tournaments.
#include <cstring>

#include "collectives/collectives.h"
#include "collectives/pairwise.h"

namespace hvd {

Status alltoall_pairwise(Comm& comm, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                         std::span<const size_t> recv_bytes) {
  const size_t n = static_cast<size_t>(comm.size);
  auto* from = reinterpret_cast<size_t*>(comm.scratch->get(kSlotOffsets, 2 * n * sizeof(size_t)));
  size_t* to = from + n;
  for (size_t i = 0, sent = 0, received = 0; i < n; sent += send_bytes[i], received += recv_bytes[i], ++i) {
    from[i] = sent;
    to[i] = received;
  }
  const size_t me = static_cast<size_t>(comm.rank);
  if (send_bytes[me] != recv_bytes[me]) {
    return Status(Code::internal, "alltoall: " + peer_name(comm, comm.rank) + " sends itself " + std::to_string(send_bytes[me]) +
                                      " bytes and expects " + std::to_string(recv_bytes[me]));
  }
  if (send_bytes[me] > 0) std::memcpy(out + to[me], in + from[me], send_bytes[me]);
  return with_every_peer(comm, [&](int peer) {
    return Transfer{peer, ConstBytes(in + from[peer], send_bytes[peer]), Bytes(out + to[peer], recv_bytes[peer])};
  });
}

}  // namespace hvd
