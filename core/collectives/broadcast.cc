// Broadcast over shared memory: the root copies a chunk to its staging area, and the other ranks copy it out and announce when they have
// done so. Up to kDepth chunks are in flight. The root reads each byte of its tensor once; every other rank reads and writes it once.
// The two overlap, except for the first chunk. The other n - 1 ranks all read the root's staging area, from the last-level cache, because
// forwarding between them gains nothing in shared memory.
#include <bit>

#include "collectives/collectives.h"
#include "collectives/flow.h"
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
      // Wait until the other ranks have copied out chunk k - kDepth. Each of them publishes one stage per chunk copied out.
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

// Binomial tree: the root sends to the rank at half the size of the set. Each of the two then serves one half of the
// set in the same way. No algorithm needs fewer steps, so this is the best one for small data.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): ceil(log2(P)) * (alpha + N * beta). Source: R. Thakur, R.
// Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.

Status broadcast_tree(Comm& comm, std::byte* data, size_t bytes, int root) {
  if (bytes == 0 || comm.size == 1) return {};
  const unsigned size = static_cast<unsigned>(comm.size);
  // This rank's position in the tree, relative to the root.
  const unsigned place = static_cast<unsigned>((comm.rank - root + comm.size) % comm.size);
  auto rank_at = [&](unsigned p) { return static_cast<int>((p + static_cast<unsigned>(root)) % size); };
  // To get the parent of a rank, clear the lowest 1 bit of its number. To get a child, set a bit below the lowest 1 bit.
  const unsigned lowest = place == 0 ? std::bit_ceil(size) : place & (~place + 1);
  if (place != 0) HVD_RETURN_IF_ERROR(recv_from(comm, rank_at(place - lowest), {data, bytes}));
  // Serve the largest subtree first, because it is the deepest.
  for (unsigned bit = lowest / 2; bit > 0; bit /= 2) {
    if (place + bit < size) HVD_RETURN_IF_ERROR(send_to(comm, rank_at(place + bit), {data, bytes}));
  }
  return {};
}

// Pipelined chain of the ranks root, root + 1, and so on. Each rank forwards data while more data arrive. Every connection carries the data
// once, so for large data the time does not grow with the number of ranks. The segment size needs no tuning: a rank forwards whatever its
// connection delivers at a time.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): (P - 2 + N/S) * (alpha + S * beta), where S is the number of bytes
// that a connection can hold. For large N, the cost is about N * beta. Source: the pipelined linear broadcast of J. Pjesivac-Grbovic et
// al., "Performance analysis of MPI collective operations", Cluster Computing 10(2), 2007.

Status broadcast_pipelined(Comm& comm, std::byte* data, size_t bytes, int root) {
  if (bytes == 0 || comm.size == 1) return {};
  const int place = (comm.rank - root + comm.size) % comm.size;
  const int from = place == 0 ? -1 : (comm.rank + comm.size - 1) % comm.size;
  const int to = place == comm.size - 1 ? -1 : (comm.rank + 1) % comm.size;
  return relay(comm, from, to, {data, bytes});
}

}  // namespace hvd
