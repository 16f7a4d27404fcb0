// A tree up and a tree down: neighbours combine, then neighbours among those that are left, until rank 0 has the sum; from there
// a binomial broadcast. As few steps each way as there can be, but whole vectors in each, and half of the ranks idle after the
// first. There to be compared with; the table never chooses it: recursive doubling does the same in half the steps.
//
// Cost: ceil(log2(P)) * (2 * alpha + N * (2 * beta + gamma)).
// Order of the reduction: THE order (collectives/reduce.h), also on worlds that are no power of two, which fold first and so take
// no step more. 16-bit floats travel as float32 on the way up, as themselves on the way down.
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1),
// 2005 (binomial reduce and broadcast).
#include "collectives/collectives.h"
#include "collectives/fold.h"

namespace hvd {
namespace {

// Leaves the result at place 0, which is rank 0.
Status reduce_up(Comm& comm, const Fold& fold, Bytes mine, DType acc, ReduceOp op) {
  for (int distance = 1; distance < fold.places; distance *= 2) {
    const int peer = fold.rank_at(fold.place ^ distance);
    if (fold.place & distance) return send_to(comm, peer, mine);
    HVD_RETURN_IF_ERROR(exchange_combine(comm, peer, {}, peer, mine, {acc, op, false}));
  }
  return {};
}

}  // namespace

Status allreduce_tree(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const DType acc = accumulator(d);
  const Fold fold = Fold::of(comm.rank, comm.size);
  std::byte* wide = widened(comm, kSlotWide, data, count, d);
  const Bytes mine(wide, count * size_of(acc));
  HVD_RETURN_IF_ERROR(fold_in(comm, fold, mine, acc, op));
  if (fold.place >= 0) HVD_RETURN_IF_ERROR(reduce_up(comm, fold, mine, acc, op));
  if (comm.rank == 0) narrowed(data, wide, 0, count, d);
  return broadcast_tree(comm, data, count * size_of(d), 0);
}

}  // namespace hvd
