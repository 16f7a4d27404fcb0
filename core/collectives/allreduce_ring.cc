// Ring allreduce: the data are split into P slices. Each slice travels once around the ring to collect the values of
// all ranks, and once more as the result. Every rank always sends to one neighbour and receives from the other. The
// ring is optimal in bandwidth and needs only two connections per rank. There are no separate steps: a rank forwards a
// slice as soon as it has combined the slice's first block.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): 2 (P-1) * alpha + 2 (P-1)/P * N * beta + (P-1)/P * N * gamma. Slice
// i starts at rank i + 1 and is added along the ring, so the position of an element determines the order of its additions. All ranks get
// bitwise identical results, but these differ from the results of other algorithms and change with fusion. By default, the ring is
// therefore not used for floats on more than two ranks (plan/algorithms.h). 16-bit floats are sent as 16 bits in the first step and in the
// second pass, and as float32 while they are sums. Source: P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", JPDC 69(2), 2009.
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {

Status allreduce_ring(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const int n = comm.size;
  const DType acc = accumulator(d);
  std::byte* wide = widened(comm, kSlotWide, data, count, d);
  auto* memory = reinterpret_cast<size_t*>(comm.scratch->get(kSlotOffsets, (n + 1) * sizeof(size_t)));
  const std::span<const size_t> offsets(memory, n + 1);
  auto cut = [&](size_t element) {
    for (int i = 0; i <= n; ++i) memory[i] = slice_at(count, n, i) * element;
  };
  cut(size_of(acc));
  const Combine combine{acc, op, true};
  // First slice to send, so that this rank's own slice arrives last.
  const int begin = (comm.rank + n - 1) % n;
  HVD_RETURN_IF_ERROR(acc == d ? ring_pass(comm, wide, offsets, begin, &combine)
                               : ring_pass_halves(comm, data, d, wide, offsets, begin, op));
  const size_t first = slice_at(count, n, comm.rank);
  narrowed(data, wide, first, slice_at(count, n, comm.rank + 1) - first, d);
  cut(size_of(d));
  return ring_pass(comm, data, offsets, comm.rank, nullptr);
}

}  // namespace hvd
