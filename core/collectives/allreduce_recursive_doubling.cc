// Recursive doubling: in step k everybody exchanges all of its partial values with the rank whose number differs in bit k, and
// both add. After log2(P) steps everybody has the result. Fewest steps, so best for small data.
//
// Cost: log2(P) * (alpha + N * (beta + gamma)), two steps more when P is not a power of two. N counts accumulation types: 16-bit
// floats travel as float32, so that a value is rounded once, but on two ranks, where the inputs are all that travels.
// Order of the reduction: THE order (collectives/reduce.h).
// Source: R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1),
// 2005.
#include "collectives/collectives.h"
#include "collectives/fold.h"

namespace hvd {
namespace {

Status double_up(Comm& comm, const Fold& fold, std::byte* mine, size_t count, DType acc, ReduceOp op) {
  const size_t bytes = count * size_of(acc);
  std::byte* theirs = comm.scratch->get(kSlotTheirs, bytes);
  for (int distance = 1; distance < fold.places; distance *= 2) {
    const int place = fold.place ^ distance;
    const int peer = fold.rank_at(place);
    // The same operands in the same order on both sides: the same bits.
    HVD_RETURN_IF_ERROR(swap_combine(comm, peer, {mine, bytes}, theirs, {acc, op, place < fold.place}));
  }
  return {};
}

}  // namespace

Status allreduce_recursive_doubling(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const DType acc = comm.size == 2 ? d : accumulator(d);  // one addition alone rounds once whatever it starts from
  const Fold fold = Fold::of(comm.rank, comm.size);
  std::byte* wide = acc == d ? data : widened(comm, kSlotWide, data, count, d);
  HVD_RETURN_IF_ERROR(fold_in(comm, fold, {wide, count * size_of(acc)}, acc, op));
  if (fold.place >= 0) {
    HVD_RETURN_IF_ERROR(double_up(comm, fold, wide, count, acc, op));
    if (acc != d) narrowed(data, wide, 0, count, d);
  }
  return fold_out(comm, fold, {data, count * size_of(d)});
}

}  // namespace hvd
