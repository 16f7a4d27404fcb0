// Dissemination barrier: in round k everybody tells the rank 2^k further on that it is here, and hears the same from the rank 2^k
// back. After ceil(log2(P)) rounds everybody has heard of everybody.
//
// Cost: ceil(log2(P)) * alpha.
// Source: D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization", Int. J. Parallel Programming 17(1),
// 1988.
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

Status barrier_dissemination(Comm& comm) {
  std::byte round{0x40};  // not a likely byte of anything else, so that ranks out of step are noticed
  for (int distance = 1; distance < comm.size; distance *= 2) {
    const int to = (comm.rank + distance) % comm.size, from = (comm.rank - distance + comm.size) % comm.size;
    std::byte heard{};
    HVD_RETURN_IF_ERROR(exchange(comm, to, {&round, 1}, from, {&heard, 1}));
    if (heard != round) return Status(Code::internal, "barrier out of step with " + peer_name(comm, from));
    round = static_cast<std::byte>(static_cast<unsigned>(round) + 1);
  }
  return {};
}

}  // namespace hvd
