// Reduce-scatter over shared memory by direct exchange in the canonical order (reduce.h). A sub-buffer has a region for each rank. In each
// round, every rank stages its contributions to the others' slices and reduces its own slice, reading its own contribution from user
// memory. For m bytes of input, one of n ranks reads m bytes of user memory and m (n - 1) / n bytes of other ranks' staging areas, and
// writes m / n bytes. `out` can be this rank's own slice of `in`, because no other rank reads that slice.
#include <algorithm>
#include <numeric>
#include <vector>

#include "collectives/collectives.h"
#include "collectives/flow.h"
#include "collectives/shm.h"

namespace hvd {

Status reducescatter_shm(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType d, ReduceOp op,
                         const Scale& s) {
  const size_t members = comm.size, me = comm.rank, element = size_of(d);
  if (counts.size() != members) {
    return Status(Code::invalid_argument,
                  "counts must have one entry per member (" + std::to_string(members) + "), got " + std::to_string(counts.size()));
  }
  const size_t before = std::accumulate(counts.begin(), counts.begin() + me, size_t{0});
  const size_t largest = *std::max_element(counts.begin(), counts.end());
  if (largest == 0) return {};
  if (members == 1) {
    scale(d, out, in, counts[0], s);
    return {};
  }

  NodeGroup& node = *comm.node;
  NodeGroup::Stage stage;
  HVD_RETURN_IF_ERROR(node.begin(&stage));
  const SubBuffers subs(stage, kDepth);
  HVD_RETURN_IF_ERROR(subs.check(members));
  const size_t region = round_down(std::min(subs.bytes / members, comm.tuning.chunk_bytes), kLine), step = region / element;
  auto part = [&](size_t m, size_t k) { return counts[m] > k * step ? std::min(step, counts[m] - k * step) : 0; };
  std::vector<const std::byte*> sources(members);

  auto stage_in = [&](size_t k) {
    const std::byte* from = in;
    for (size_t m = 0; m < members; from += counts[m] * element, ++m) {
      const size_t some = m == me ? 0 : part(m, k);
      if (some > 0) copy_bytes(subs.at(node.me(), k) + m * region, from + k * step * element, some * element, false);
    }
  };
  auto take_out = [&](size_t k) -> Status {
    HVD_RETURN_IF_ERROR(node.await_all(k + 1));
    for (size_t m = 0; m < members; ++m) sources[m] = subs.at(static_cast<int>(m), k) + me * region;
    sources[me] = in + (before + k * step) * element;
    const bool in_place = out == in + before * element;
    reduce_many(d, op, out + k * step * element, sources, part(me, k), s, !in_place && counts[me] * element >= comm.tuning.stream_bytes);
    return {};
  };
  return run_rounds(node, ceil_div(largest, step), 0, stage_in, take_out);
}

// Direct reduce-scatter: every rank sends each other rank the data for that rank's slice. The owner of a slice reduces
// all contributions together, in the canonical order (collectives/reduce.h), and scales the result. Large slices are
// sent in rounds, which bounds the memory for contributions that wait for reduction.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): (P-1) * alpha + (P-1)/P * N * (beta + gamma). The latencies (alpha)
// overlap within a window of peers, and occur once per round. 16-bit floats are sent unchanged and added in float32. Source: the pairwise
// exchange in R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.

namespace {

// Return the number of elements of each slice that are processed per round.
size_t round_count(int size, DType d) { return block_of_contributions(static_cast<size_t>(size)) / size_of(d); }

}  // namespace

Status reducescatter_pairwise(Comm& comm, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType d, ReduceOp op,
                              const Scale& scale) {
  const size_t n = static_cast<size_t>(comm.size), element = size_of(d), own = counts[comm.rank];
  auto* offsets = reinterpret_cast<size_t*>(comm.scratch->get(kSlotOffsets, n * sizeof(size_t)));
  for (size_t i = 0, sum = 0; i < n; sum += counts[i++]) offsets[i] = sum;
  const size_t largest = *std::max_element(counts.begin(), counts.end());
  const size_t block = std::min(round_count(comm.size, d), std::max<size_t>(largest, 1));
  std::byte* remote = comm.scratch->get(kSlotTheirs, n * std::min(block, std::max<size_t>(own, 1)) * element);
  auto** sources = reinterpret_cast<const std::byte**>(comm.scratch->get(kSlotSources, n * sizeof(std::byte*)));

  for (size_t first = 0; first < largest; first += block) {
    auto part = [&](int rank) { return std::min(block, counts[rank] - std::min(first, counts[rank])); };
    const size_t my_part = part(comm.rank);
    for (size_t i = 0; i < n; ++i) sources[i] = remote + i * my_part * element;
    sources[comm.rank] = in + (offsets[comm.rank] + first) * element;
    HVD_RETURN_IF_ERROR(with_every_peer(comm, [&](int peer) {
      return Transfer{peer, ConstBytes(in + (offsets[peer] + first) * element, part(peer) * element),
                      Bytes(remote + static_cast<size_t>(peer) * my_part * element, my_part * element)};
    }));
    if (my_part > 0) reduce_many(d, op, out + first * element, {sources, n}, my_part, scale);
  }
  return {};
}

}  // namespace hvd
