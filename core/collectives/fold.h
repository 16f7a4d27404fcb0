// Worlds whose size is not a power of two, for the algorithms on a hypercube. With p the largest power of two <= size and
// r = size - p: ranks 2i and 2i + 1 (i < r) first combine into 2i, which takes the place i; the ranks from 2r on take the places
// from r on. In the end 2i hands the result to 2i + 1. This is the first step of THE order of reductions (collectives/reduce.h).
#pragma once
#include <bit>

#include "collectives/flow.h"

namespace hvd {

struct Fold {
  int places;  // p
  int folded;  // r
  int place;   // mine, or -1: another rank works for me

  static Fold of(int rank, int size) {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    const int r = size - p;
    const int place = rank >= 2 * r ? rank - r : rank % 2 == 0 ? rank / 2 : -1;
    return {p, r, place};
  }
  int rank_at(int place_of_it) const { return place_of_it < folded ? 2 * place_of_it : place_of_it + folded; }
  bool pairs(int rank) const { return rank < 2 * folded; }
};

// Before: `data` holds values of the accumulation type `acc`.
inline Status fold_in(Comm& comm, const Fold& fold, Bytes data, DType acc, ReduceOp op) {
  if (!fold.pairs(comm.rank)) return {};
  if (fold.place < 0) return send_to(comm, comm.rank - 1, data);
  return exchange_combine(comm, comm.rank + 1, {}, comm.rank + 1, data, {acc, op, false});
}

// After: the bytes of the result.
inline Status fold_out(Comm& comm, const Fold& fold, Bytes data) {
  if (!fold.pairs(comm.rank)) return {};
  return fold.place < 0 ? recv_from(comm, comm.rank - 1, data) : send_to(comm, comm.rank + 1, data);
}

}  // namespace hvd
