// Allgather over shared memory by direct exchange. In each round, every rank stages its next chunk and copies out the chunks of the others.
// Each rank starts with a different neighbour, so that not all ranks read the same staging area. If n ranks send m bytes each, a rank reads
// m bytes of user memory and (n - 1) m bytes of other ranks' staging areas, and writes n m bytes of user memory.
#include <cstring>
#include <numeric>

#include "collectives/collectives.h"
#include "collectives/flow.h"
#include "collectives/shm.h"

namespace hvd {

Status allgather_shm(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> bytes) {
  const size_t members = comm.size, me = comm.rank;
  if (bytes.size() != members) {
    return Status(Code::invalid_argument,
                  "bytes must have one entry per member (" + std::to_string(members) + "), got " + std::to_string(bytes.size()));
  }
  const size_t before = std::accumulate(bytes.begin(), bytes.begin() + me, size_t{0});
  const size_t all = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  const size_t largest = *std::max_element(bytes.begin(), bytes.end());
  if (in != out + before) copy_bytes(out + before, in, bytes[me], all >= comm.tuning.stream_bytes);
  if (largest == 0 || members == 1) return {};

  NodeGroup& node = *comm.node;
  NodeGroup::Stage stage;
  HVD_RETURN_IF_ERROR(node.begin(&stage));
  const SubBuffers subs(stage, kDepth);
  HVD_RETURN_IF_ERROR(subs.check(1));
  const size_t step = std::min(subs.bytes, comm.tuning.chunk_bytes);
  auto some = [&](size_t m, size_t k) { return bytes[m] > k * step ? std::min(step, bytes[m] - k * step) : 0; };

  auto stage_in = [&](size_t k) { copy_bytes(subs.at(node.me(), k), in + k * step, some(me, k), false); };
  auto take_out = [&](size_t k) -> Status {
    // Position in `out` of the block of the rank after this one.
    std::byte* to = out + before + bytes[me];
    for (size_t i = 1; i < members; ++i) {
      const size_t m = (me + i) % members;
      if (m == 0) to = out;
      HVD_RETURN_IF_ERROR(node.await(static_cast<int>(m), k + 1));
      copy_bytes(to + k * step, subs.at(static_cast<int>(m), k), some(m, k), all >= comm.tuning.stream_bytes);
      to += bytes[m];
    }
    return {};
  };
  return run_rounds(node, ceil_div(largest, step), 0, stage_in, take_out);
}

// Ring allgather: every rank's block travels once around the ring, and each rank forwards a block while it arrives.
// Every rank keeps two connections busy throughout. Blocks can differ in size.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): (P-1) * alpha + (P-1)/P * N * beta, where N is the total size of
// all blocks. A single dominant block adds about N * beta. Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective
// Communication Operations in MPICH", IJHPCA 19(1), 2005.

Status allgather_ring(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> bytes) {
  const size_t n = static_cast<size_t>(comm.size);
  auto* offsets = reinterpret_cast<size_t*>(comm.scratch->get(kSlotOffsets, (n + 1) * sizeof(size_t)));
  offsets[0] = 0;
  for (size_t i = 0; i < n; ++i) offsets[i + 1] = offsets[i] + bytes[i];
  std::byte* own = out + offsets[comm.rank];
  if (own != in && bytes[comm.rank] > 0) std::memcpy(own, in, bytes[comm.rank]);
  if (n == 1 || offsets[n] == 0) return {};
  return ring_pass(comm, out, {offsets, n + 1}, comm.rank, nullptr);
}

}  // namespace hvd
