// Rabenseifner's algorithm: reduce-scatter by recursive halving, then allgather by recursive doubling. In each of the
// first log2(P) steps, two ranks share a range. Each rank receives the other's values for one half of the range and
// adds them. The results are then copied back in the reverse order. Partners are neighbours first (vector halving,
// distance doubling), because that is the canonical order of reductions. The result then has the same bits as with
// recursive doubling.
//
// Cost for P ranks and N bytes (alpha-beta-gamma model of plan/cost.h): 2 log2(P) * alpha + 2 (P-1)/P * N * beta + (P-1)/P * N * gamma. If
// P is not a power of two, two more steps send all N bytes. 16-bit floats are sent as 16 bits in the first step and on the way back, and as
// float32 in the other steps. Sources: R. Rabenseifner, "Optimization of Collective Reduction Operations", ICCS 2004; R. Thakur, R.
// Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
#include "collectives/collectives.h"
#include "collectives/flow.h"

namespace hvd {
namespace {

struct Range {
  size_t lo, hi;
  Bytes of(std::byte* base, size_t element) const { return {base + lo * element, (hi - lo) * element}; }
};

struct Halving {
  const Fold& fold;
  // path[k] is the range of elements that this rank and its partner reduce in step k. Each of them keeps one half. path[steps] is the range
  // of which this rank computes the final values.
  Range path[32];
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

namespace {

// Reduce-scatter by recursive halving, then allgather by recursive doubling. `sums` is true if v.wide already holds sums of several ranks;
// v.data is then unused.
Status halve_and_double(Comm& comm, const AllreduceValues& v, ReduceOp op, bool sums) {
  std::byte* data = v.data;
  const DType d = v.d;
  const size_t count = v.count;
  const Fold fold = Fold::of(comm.rank, comm.size);
  HVD_RETURN_IF_ERROR(fold_in(comm, fold, v, op, sums));
  if (fold.place >= 0) {
    const Halving halving(fold, count);
    for (int k = 0; k < halving.steps; ++k) {
      const int peer = halving.partner(k);
      const Range given = halving.given(k), kept = halving.kept(k);
      auto sum = [&](int place) { return sums || k > 0 || fold.begins_with_sum(place); };
      const ConstBytes out = v.outgoing(sum(fold.place), given.lo, given.hi);
      const Combine combine = v.combine(sum(fold.place ^ (1 << k)), op, !halving.lower(k));
      HVD_RETURN_IF_ERROR(exchange_combine(comm, peer, out, peer, v.own(kept.lo, kept.hi), combine));
    }
    const Range own = halving.own();
    narrowed(data, v.wide, own.lo, own.hi - own.lo, d);
    for (int k = halving.steps - 1; k >= 0; --k) {
      const int peer = halving.partner(k);
      HVD_RETURN_IF_ERROR(exchange(comm, peer, halving.kept(k).of(data, size_of(d)), peer, halving.given(k).of(data, size_of(d))));
    }
  }
  return fold_out(comm, fold, {data, count * size_of(d)});
}

}  // namespace

Status allreduce_rabenseifner(Comm& comm, std::byte* data, size_t count, DType d, ReduceOp op) {
  if (count == 0 || comm.size == 1) return {};
  return halve_and_double(comm, AllreduceValues::of(comm, data, count, d), op, false);
}

Status allreduce_rabenseifner_sums(Comm& comm, float* sums, std::byte* result, size_t count, DType d, ReduceOp op) {
  if (count == 0) return {};
  return halve_and_double(comm, {result, reinterpret_cast<std::byte*>(sums), count, d, DType::float32}, op, true);
}

}  // namespace hvd
