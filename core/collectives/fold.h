// Folding for the hypercube algorithms when the size is not a power of two. Let p be the largest power of two <= size
// and r = size - p. Ranks 2i and 2i + 1 (i < r) first combine into 2i, which takes place i; ranks from 2r on take the
// places from r on. At the end 2i sends the result to 2i + 1. This is the first step of the canonical order of
// reductions (collectives/reduce.h).
#pragma once
#include <bit>

#include "collectives/flow.h"

namespace hvd {

struct Fold {
  int places;  // number of places (p)
  int folded;  // number of pairs that are folded (r)
  int place;   // this rank's place, or -1: another rank works for it

  static Fold of(int rank, int size) {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    const int r = size - p;
    const int place = rank >= 2 * r ? rank - r : rank % 2 == 0 ? rank / 2 : -1;
    return {p, r, place};
  }
  int rank_at(int place_of_it) const { return place_of_it < folded ? 2 * place_of_it : place_of_it + folded; }
  bool pairs(int rank) const { return rank < 2 * folded; }
  // True if a place starts with the sum of two ranks instead of one rank's values.
  bool begins_with_sum(int place_of_it) const { return place_of_it < folded; }
};

// The values during an allreduce. 16-bit floats are added in float32 and rounded once, at the end. A rank's initial
// values are sent in 16 bits; sums have to be sent in 32.
struct Values {
  std::byte* data;  // this rank's values, of type d; receives the result
  std::byte* wide;  // the same in the accumulation type: `data` itself, or a copy in scratch
  size_t count;
  DType d, acc;

  static Values of(Comm& comm, std::byte* data, size_t count, DType d) {
    return {data, widened(comm, kSlotWide, data, count, d), count, d, accumulator(d)};
  }
  // Return elements [lo, hi): mine() as they are in memory, outgoing() as they are sent. `sum`: they are sums of
  // several ranks.
  Bytes mine(size_t lo, size_t hi) const { return {wide + lo * size_of(acc), (hi - lo) * size_of(acc)}; }
  ConstBytes outgoing(bool sum, size_t lo, size_t hi) const {
    return sum ? mine(lo, hi) : Bytes(data + lo * size_of(d), (hi - lo) * size_of(d));
  }
  Combine combine(bool sum, ReduceOp op, bool theirs_first) const { return {acc, op, theirs_first, sum ? acc : d}; }
};

// Step before the algorithm. `sums`: the initial values of the ranks are already sums.
inline Status fold_in(Comm& comm, const Fold& fold, const Values& v, ReduceOp op, bool sums = false) {
  if (!fold.pairs(comm.rank)) return {};
  if (fold.place < 0) return send_to(comm, comm.rank - 1, v.outgoing(sums, 0, v.count));
  return exchange_combine(comm, comm.rank + 1, {}, comm.rank + 1, v.mine(0, v.count), v.combine(sums, op, false));
}

// Step after the algorithm: pass on the bytes of the result.
inline Status fold_out(Comm& comm, const Fold& fold, Bytes data) {
  if (!fold.pairs(comm.rank)) return {};
  return fold.place < 0 ? recv_from(comm, comm.rank - 1, data) : send_to(comm, comm.rank + 1, data);
}

}  // namespace hvd
