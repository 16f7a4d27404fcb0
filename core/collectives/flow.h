// Data flow shared by the loops of all algorithms over links. Private to this layer.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// ---- one step in one direction: move what can be moved now and shorten the span -------------------------------------
Status advance_out(const Comm& comm, int peer, ConstBytes& out, bool& moved);
Status advance_in(const Comm& comm, int peer, Bytes& in, bool& moved);

// Descriptions for messages: "rank 3 (host a, pid 17)"; "data from rank 3 (...) and rank 4 (...) to take data".
std::string peer_name(const Comm& comm, int peer);
std::string pending_text(const Comm& comm, int to, bool sending, int from, bool receiving);

// True if any of the links is a socket.
bool over_sockets(const Comm& comm);

// Call step(moved, done) until it is done, fails, or moves nothing for comm.timeout. `text()` describes what it waits
// for.
template <class Text, class Step>
Status pump(Comm& comm, const Text& text, Step step) {
  // Captures one pointer, so std::function does not allocate.
  Wait wait(*comm.waiter, comm.timeout, [&text] { return text(); });
  if (over_sockets(comm)) wait.polling_is_expensive();
  while (true) {
    bool moved = false, done = false;
    HVD_RETURN_IF_ERROR(step(moved, done));
    if (done) return {};
    if (moved) {
      wait.progress();
    } else {
      HVD_RETURN_IF_ERROR(wait.pause());
    }
  }
}

// ---- receiving and combining ----------------------------------------------------------------------------------------------
struct Combine {
  DType dtype;  // type of the values in memory: an accumulation type
  ReduceOp op;
  bool theirs_first;  // the peer's value is the left operand, that of the lower rank
  DType wire = dtype;  // type that arrives if it differs from `dtype`: 16-bit floats for float32 values
};

// Data arriving from one peer for a range of memory, stored there or combined with what is there. Complete cache-sized
// blocks are combined while the next ones arrive.
class Inflow {
 public:
  Inflow(Comm& comm, int from, const Combine* combine);
  void start(Bytes target);
  void start(Bytes target, const Combine* combine);
  Status advance(bool& moved);
  bool done() const { return ready_ == target_.size(); }
  size_t ready() const { return ready_; }  // leading bytes of the target that are final

 private:
  Comm& comm_;
  int from_;
  const Combine* combine_;
  Bytes target_, window_, rest_;  // rest_: bytes still to arrive for this window
  size_t ready_ = 0;
  void open_window();
};

// Send `out` while combining what arrives into `mine` (which must not overlap `out`). Each direction has its own
// format.
Status exchange_combine(Comm& comm, int to, ConstBytes out, int from, Bytes mine, const Combine& combine);

// Exchange `mine` with a peer; both sides then hold the combination in its place. `theirs`: memory of the same size.
// Combines blocks that were both received and sent while the rest is in flight.
Status swap_combine(Comm& comm, int peer, Bytes mine, std::byte* theirs, const Combine& combine);

// Make one pass around the ring. Slice i of `base` is [offsets[i], offsets[i + 1]) in bytes, one per rank. This rank
// sends slices first, first - 1 and so on (size - 1 of them) to the next rank and receives first - 1, first - 2 and so
// on from the previous one. With `combine`, each received slice is combined with this rank's before it is sent on.
// Steps overlap: bytes are sent on as soon as they have arrived and been combined.
Status ring_pass(Comm& comm, std::byte* base, std::span<const size_t> offsets, int first, const Combine* combine);

// Same for 16-bit floats: `data` has this rank's values, `base` receives the float32 sums. The first slice is sent in
// 16 bits.
Status ring_pass_halves(Comm& comm, const std::byte* data, DType d, std::byte* base, std::span<const size_t> offsets, int first,
                        ReduceOp op);

// Pass `data` on while it arrives. from < 0: this rank is the source; to < 0: it is the last.
Status relay(Comm& comm, int from, int to, Bytes data);

// ---- 16-bit floats ----------------------------------------------------------------------------------------------------------
// Return the values in their accumulation type: `data` itself, or its float32 copy in scratch slot `slot`.
std::byte* widened(Comm& comm, int slot, std::byte* data, size_t count, DType d);
// Convert elements [first, first + count) of `wide` back to `data`. No-op if they are the same memory.
void narrowed(std::byte* data, const std::byte* wide, size_t first, size_t count, DType d);

// Return the index of the first element of slice i, if `count` elements are split into n slices.
constexpr size_t slice_at(size_t count, int n, int i) {
  const size_t q = count / n, r = count % n;
  return q * i + (static_cast<size_t>(i) < r ? i : r);
}

// Scratch slots of the algorithms over links; a Scratch may serve a Comm and its local and cross parts. Lower slots are
// for algorithms in shared memory.
enum LinkSlot : int {
  kSlotWide = 16,  // float32 copy of the data
  kSlotTheirs,     // data received from a peer
  kSlotTheirsWide,  // data received from a peer, as float32
  kSlotOffsets,
  kSlotCounts,
  kSlotSources,
  kSlotHierarchyWide,  // in use while another algorithm runs between the hosts
  kSlotHierarchySlice,
  kSlotHierarchyCounts,
  kSlotCoded,        // compressed allreduce: this rank's coded contribution, then the result
  kSlotCodedTheirs,  // all ranks' contributions to this rank's part
  kSlotCodedCounts,
  kSlotCodedFloats,
  kSlotAdasum,       // 16-bit result of Adasum
  kSlotGuardMine,    // collectives/guarded.h: kept between calls; no other collective runs then
  kSlotGuardTheirs,
};

// Round schedule of algorithms in which every rank talks directly to every other rank.
//
// Ranks a and b meet in round (a + b) mod size, which is the same for both. In one round a rank meets one other rank
// (or itself). So a window of consecutive rounds can run at once, and no rank waits for one that is in a later window:
// in the earliest unfinished window of the job, both sides of every transfer are present. Windows bound the number of
// active connections.

inline constexpr int kPairwiseWindow = 16;

// Return the bytes that each of `ranks` ranks may have waiting at the rank that reduces them: about 16 MiB altogether,
// a multiple of every element size.
constexpr size_t block_of_contributions(size_t ranks) { return std::clamp<size_t>((16u << 20) / ranks / 64 * 64, 64 << 10, 2 << 20); }

// Run transfer(peer), which returns a Transfer, for each other rank.
template <class F>
Status with_every_peer(Comm& comm, F transfer) {
  for (int begin = 0; begin < comm.size; begin += kPairwiseWindow) {
    std::array<Transfer, kPairwiseWindow> window;
    size_t n = 0;
    for (int round = begin; round < std::min(begin + kPairwiseWindow, comm.size); ++round) {
      const int peer = (round - comm.rank + comm.size) % comm.size;
      if (peer != comm.rank) window[n++] = transfer(peer);
    }
    HVD_RETURN_IF_ERROR(exchange_all(comm, std::span(window.data(), n)));
  }
  return {};
}

// Folding for the hypercube algorithms when the size is not a power of two. Let p be the largest power of two <= size
// and r = size - p. Ranks 2i and 2i + 1 (i < r) first combine into 2i, which takes place i; ranks from 2r on take the
// places from r on. At the end 2i sends the result to 2i + 1. This is the first step of the canonical order of
// reductions (collectives/reduce.h).

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
struct AllreduceValues {
  std::byte* data;  // this rank's values, of type d; receives the result
  std::byte* wide;  // the same in the accumulation type: `data` itself, or a copy in scratch
  size_t count;
  DType d, acc;

  static AllreduceValues of(Comm& comm, std::byte* data, size_t count, DType d) {
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
inline Status fold_in(Comm& comm, const Fold& fold, const AllreduceValues& v, ReduceOp op, bool sums = false) {
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
