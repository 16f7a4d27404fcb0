// Recursive doubling: in step k, every rank exchanges all its partial sums with the rank whose number differs in bit k,
// and both ranks add them. After log2(P) steps, every rank has the result. No algorithm takes fewer steps, so this one
// is best for small data.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): log2(P) * (alpha + N * (beta + gamma)), with two more steps if P is
// not a power of two. 16-bit floats are sent as 16 bits in the first step. Later steps send float32 sums, so that each value is rounded
// only once. Values are added in the canonical order (collectives/reduce.h). Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of
// Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

// First step for 16-bit floats, in which ranks exchange their original 16-bit values. A rank that has already added another rank's values
// (Fold) sends a float32 sum instead.
Status first_of_halves(Comm& comm, const Fold& fold, const AllreduceValues& v, ReduceOp op) {
  const int place = fold.place ^ 1, peer = fold.rank_at(place);
  const bool sum = fold.begins_with_sum(fold.place), theirs_is_sum = fold.begins_with_sum(place);
  const Bytes own = v.own(0, v.count);
  const Combine combine = v.combine(theirs_is_sum, op, place < fold.place);
  if (!sum) return exchange_combine(comm, peer, v.outgoing(false, 0, v.count), peer, own, combine);
  // Add the peer's values only after the exchange, because a buffer must not change while it is being sent.
  std::byte* remote = comm.scratch->get(kSlotTheirs, own.size());
  if (theirs_is_sum) return swap_combine(comm, peer, own, remote, combine);
  HVD_RETURN_IF_ERROR(exchange(comm, peer, own, peer, {remote, v.count * size_of(v.d)}));
  auto* wide = reinterpret_cast<float*>(comm.scratch->get(kSlotTheirsWide, own.size()));
  widen(v.d, wide, remote, v.count);
  // A rank that starts with a sum has a lower number than a peer that does not, so its values are the left operand.
  reduce2(v.acc, op, own.data(), own.data(), reinterpret_cast<std::byte*>(wide), v.count);
  return {};
}

Status double_up(Comm& comm, const Fold& fold, const AllreduceValues& v, ReduceOp op) {
  int distance = 1;
  if (v.acc != v.d && fold.places > 1) {
    HVD_RETURN_IF_ERROR(first_of_halves(comm, fold, v, op));
    distance = 2;
  }
  const Bytes own = v.own(0, v.count);
  std::byte* remote = comm.scratch->get(kSlotTheirs, own.size());
  for (; distance < fold.places; distance *= 2) {
    const int place = fold.place ^ distance;
    const int peer = fold.rank_at(place);
    // Both ranks add the same operands in the same order, so their results are bitwise identical.
    HVD_RETURN_IF_ERROR(swap_combine(comm, peer, own, remote, {v.acc, op, place < fold.place}));
  }
  return {};
}

}  // namespace

Status allreduce_recursive_doubling(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const Fold fold = Fold::of(comm.rank, comm.size);
  // With two ranks, add 16-bit values directly: there is only one addition, so there is only one rounding.
  const AllreduceValues v = comm.size == 2 ? AllreduceValues{data, data, count, d, d} : AllreduceValues::of(comm, data, count, d);
  HVD_RETURN_IF_ERROR(fold_in(comm, fold, v, op));
  if (fold.place >= 0) {
    HVD_RETURN_IF_ERROR(double_up(comm, fold, v, op));
    if (v.acc != d) narrowed(data, v.wide, 0, count, d);
  }
  return fold_out(comm, fold, {data, count * size_of(d)});
}

}  // namespace hvd
