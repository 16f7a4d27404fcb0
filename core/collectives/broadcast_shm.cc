// Broadcast over shared memory: the root stages a chunk, the others copy it out and publish that; up to kDepth chunks
// are in flight.
//   cost: a + R m at the root; X m + W m at the others, at the same time except for the first chunk
// The root serves all members directly: forwarding is pointless in memory that all can read. The n - 1 members read the
// root's staging area from the last-level cache.
#include "collectives/collectives.h"
#include "collectives/shm.h"

namespace hvd {

Status broadcast_shm(Comm& comm, std::byte* data, size_t bytes, int root) {
  if (root < 0 || root >= comm.size) {
    return Status(Code::invalid_argument, "root must be 0 to " + std::to_string(comm.size - 1) + ", got " + std::to_string(root));
  }
  if (bytes == 0 || comm.size == 1) return {};
  NodeGroup& node = *comm.node;
  NodeGroup::Stage stage;
  HVD_RETURN_IF_ERROR(node.begin(&stage));
  const SubBuffers subs(stage, kDepth);
  HVD_RETURN_IF_ERROR(subs.check(1));
  const size_t step = std::min(subs.bytes, comm.tuning.chunk_bytes);
  const size_t rounds = ceil_div(bytes, step);
  for (size_t k = 0; k < rounds; ++k) {
    const size_t at = k * step, some = std::min(step, bytes - at);
    if (node.me() == root) {
      // Stage j of another member means that it has copied out j chunks.
      if (k >= kDepth) HVD_RETURN_IF_ERROR(node.await_all(k - kDepth + 1));
      copy_bytes(subs.at(root, k), data + at, some, false);
    } else {
      HVD_RETURN_IF_ERROR(node.await(root, k + 1));
      copy_bytes(data + at, subs.at(root, k), some, bytes >= comm.tuning.stream_bytes);
    }
    node.publish();
  }
  node.finish();
  return {};
}

}  // namespace hvd
