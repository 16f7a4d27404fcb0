// Rabenseifner's algorithm: a reduce-scatter by recursive halving, then an allgather by recursive doubling. In each of the first
// log2(P) steps two ranks share a range, each takes the other's values for its half of it and adds; then the way back, copying.
// Partners are neighbours first (vector halving, distance doubling), because that is THE order of reductions; the result does not
// depend on whether this algorithm or recursive doubling ran.
//
// Cost: 2 log2(P) * alpha + 2 (P-1)/P * N * beta + (P-1)/P * N * gamma; when P is not a power of two, two steps with all N more.
// 16-bit floats travel as float32 on the way in, as themselves on the way back.
// Source: R. Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004; R. Thakur, R. Rabenseifner, W. Gropp,
// "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
#include "collectives/collectives.h"
#include "collectives/fold.h"

namespace hvd {
namespace {

struct Range {
  size_t lo, hi;
  Bytes of(std::byte* base, size_t element) const { return {base + lo * element, (hi - lo) * element}; }
};

struct Halving {
  const Fold& fold;
  Range path[32];  // path[k]: the range shared with the partner of step k; path[steps]: mine alone
  int steps = 0;

  Halving(const Fold& f, size_t count) : fold(f) {
    path[0] = {0, count};
    for (; (1 << steps) < fold.places; ++steps) path[steps + 1] = half(steps, lower(steps));
  }
  bool lower(int step) const { return (fold.place >> step & 1) == 0; }
  int partner(int step) const { return fold.rank_at(fold.place ^ (1 << step)); }
  Range half(int step, bool low) const {
    const auto [lo, hi] = path[step];
    const size_t middle = lo + (hi - lo) / 2;
    return low ? Range{lo, middle} : Range{middle, hi};
  }
  Range kept(int step) const { return half(step, lower(step)); }
  Range given(int step) const { return half(step, !lower(step)); }
  Range own() const { return path[steps]; }
};

}  // namespace

Status allreduce_rabenseifner(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  const DType acc = accumulator(d);
  const Fold fold = Fold::of(comm.rank, comm.size);
  std::byte* wide = widened(comm, kSlotWide, data, count, d);
  HVD_RETURN_IF_ERROR(fold_in(comm, fold, {wide, count * size_of(acc)}, acc, op));
  if (fold.place >= 0) {
    const Halving halving(fold, count);
    for (int k = 0; k < halving.steps; ++k) {
      const int peer = halving.partner(k);
      const Combine combine{acc, op, !halving.lower(k)};
      HVD_RETURN_IF_ERROR(
          exchange_combine(comm, peer, halving.given(k).of(wide, size_of(acc)), peer, halving.kept(k).of(wide, size_of(acc)), combine));
    }
    const Range own = halving.own();
    narrowed(data, wide, own.lo, own.hi - own.lo, d);
    for (int k = halving.steps - 1; k >= 0; --k) {
      const int peer = halving.partner(k);
      HVD_RETURN_IF_ERROR(exchange(comm, peer, halving.kept(k).of(data, size_of(d)), peer, halving.given(k).of(data, size_of(d))));
    }
  }
  return fold_out(comm, fold, {data, count * size_of(d)});
}

}  // namespace hvd
