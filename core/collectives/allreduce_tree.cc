// Tree reduction and tree broadcast: neighbours combine, then neighbours among the remaining ranks, until rank 0 has
// the sum; then a binomial broadcast. The minimum number of steps each way, but each sends whole vectors, and half of
// the ranks are idle after the first. For comparison only; the table never chooses it, because recursive doubling takes
// half the steps.
//
// Cost: ceil(log2(P)) * (2 * alpha + N * (2 * beta + gamma)).
// Order of the reduction: the canonical order (collectives/reduce.h), also for sizes that are not a power of two, which
// fold first and so need no extra step. 16-bit floats are sent as float32 on the way up where they are sums, otherwise
// as 16 bits.
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA
// 19(1), 2005 (binomial reduce and broadcast).
#include "collectives/collectives.h"
#include "collectives/fold.h"

namespace hvd {
namespace {

// Reduce to place 0, which is rank 0.
Status reduce_up(Comm& comm, const Fold& fold, const Values& v, ReduceOp op) {
  for (int distance = 1; distance < fold.places; distance *= 2) {
    const int place = fold.place ^ distance, peer = fold.rank_at(place);
    auto sum = [&](int place_of_it) { return distance > 1 || fold.begins_with_sum(place_of_it); };
    if (fold.place & distance) return send_to(comm, peer, v.outgoing(sum(fold.place), 0, v.count));
    HVD_RETURN_IF_ERROR(exchange_combine(comm, peer, {}, peer, v.mine(0, v.count), v.combine(sum(place), op, false)));
  }
  return {};
}

}  // namespace

Status allreduce_tree(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const Fold fold = Fold::of(comm.rank, comm.size);
  const Values v = Values::of(comm, data, count, d);
  HVD_RETURN_IF_ERROR(fold_in(comm, fold, v, op));
  if (fold.place >= 0) HVD_RETURN_IF_ERROR(reduce_up(comm, fold, v, op));
  if (comm.rank == 0) narrowed(data, v.wide, 0, count, d);
  return broadcast_tree(comm, data, count * size_of(d), 0);
}

}  // namespace hvd
