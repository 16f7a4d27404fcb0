// Barrier over shared memory: every rank increments its own counter and waits for the counters of the others. Cost for n ranks (notation of
// shm.h): one latency `a`. A tree would cost log(n) times `a`; a flat barrier is cheaper, because a rank can read all n counters at once.
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

Status barrier_shm(Comm& comm) {
  if (comm.size == 1) return {};
  NodeGroup::Stage unused;
  HVD_RETURN_IF_ERROR(comm.node->begin(&unused));
  comm.node->publish();
  HVD_RETURN_IF_ERROR(comm.node->await_all(1));
  comm.node->finish();
  return {};
}

// Dissemination barrier: in round k, every rank sends to the rank 2^k ahead and receives from the rank 2^k behind.
// After ceil(log2(P)) rounds, every rank has heard from every other rank, directly or indirectly.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): ceil(log2(P)) * alpha. Source: D. Hensgen, R. Finkel, U. Manber,
// "Two algorithms for barrier synchronization", Int. J. Parallel Programming 17(1), 1988.

Status barrier_dissemination(Comm& comm) {
  // First byte to send; it increases with each round. Other messages are unlikely to contain the same byte, so ranks that are out of step
  // are detected.
  std::byte round{0x40};
  for (int distance = 1; distance < comm.size; distance *= 2) {
    const int to = (comm.rank + distance) % comm.size, from = (comm.rank - distance + comm.size) % comm.size;
    std::byte received{};
    HVD_RETURN_IF_ERROR(exchange(comm, to, {&round, 1}, from, {&received, 1}));
    if (received != round) return Status(Code::internal, "barrier out of step with " + peer_name(comm, from));
    round = static_cast<std::byte>(static_cast<unsigned>(round) + 1);
  }
  return {};
}

}  // namespace hvd
