// Transfer functions and loops shared by all collective algorithms that use links. Private to this layer.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <string>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// ---- Non-blocking transfers: move as many bytes as possible, and remove them from the span --------------------------
Status advance_out(const Comm& comm, int peer, ConstBytes& out, bool& moved);
Status advance_in(const Comm& comm, int peer, Bytes& in, bool& moved);

// Return text for error messages. peer_name() describes a rank, for example "rank 3 (host a, pid 17)". pending_text() describes what a
// transfer waits for, for example "data from rank 3 (...) and rank 4 (...) to take data".
std::string peer_name(const Comm& comm, int peer);
std::string pending_text(const Comm& comm, int to, bool sending, int from, bool receiving);

// True if at least one of the links is a socket.
bool over_sockets(const Comm& comm);

// Call step(moved, done) until it sets `done`, returns an error, or makes no progress for comm.timeout seconds. text() describes for error
// messages what the loop waits for.
template <class Text, class Step>
Status pump(Comm& comm, const Text& text, Step step) {
  // Capture only one pointer, so that std::function does not allocate.
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

// ---- Receiving and combining values ---------------------------------------------------------------------------------
struct Combine {
  // Type of the values in memory, in which they are added: an accumulation type, such as float32 for float16 tensors.
  DType dtype;
  ReduceOp op;
  // True if the peer is the lower rank, whose value is the left operand.
  bool theirs_first;
  // Type of the received values. It can be a 16-bit type if `dtype` is float32.
  DType wire = dtype;
};

// Stream of data from one peer into a memory range. Arriving values are stored there or combined with the values already there, one
// cache-sized block at a time, while the next block arrives.
class Inflow {
 public:
  Inflow(Comm& comm, int from, const Combine* combine);
  void start(Bytes target);
  void start(Bytes target, const Combine* combine);
  Status advance(bool& moved);
  bool done() const { return ready_ == target_.size(); }
  // Return the number of leading bytes of the memory range that have their final values.
  size_t ready() const { return ready_; }

 private:
  Comm& comm_;
  int from_;
  const Combine* combine_;
  // Memory range for the data (target_), the block that is arriving (window_), and the missing part of this block (rest_).
  Bytes target_, window_, rest_;
  size_t ready_ = 0;
  void open_window();
};

// Send `out` to one rank, and combine the data from another rank into `own`, which must not overlap `out`. The two can have different
// element types.
Status exchange_combine(Comm& comm, int to, ConstBytes out, int from, Bytes own, const Combine& combine);

// Exchange `own` with a peer and combine the values, so that both ranks have the result in `own`. `remote` is scratch memory of the same
// size. A block is combined once it has been both sent and received, while other blocks are in flight.
Status swap_combine(Comm& comm, int peer, Bytes own, std::byte* remote, const Combine& combine);

// Make one pass around the ring. Slice i is the bytes [offsets[i], offsets[i + 1]) of `base`, one slice per rank. This rank sends slices
// first, first - 1 and so on (size - 1 of them) to the next rank. It receives slices first - 1, first - 2 and so on from the previous rank.
// With `combine`, a received slice is combined with this rank's slice. Bytes are sent on as soon as they have arrived and been combined.
Status ring_pass(Comm& comm, std::byte* base, std::span<const size_t> offsets, int first, const Combine* combine);

// Make one pass around the ring for 16-bit floats. `data` has this rank's values, and `base` receives the float32 sums.
// The first slice is sent as 16-bit floats.
Status ring_pass_halves(Comm& comm, const std::byte* data, DType d, std::byte* base, std::span<const size_t> offsets, int first,
                        ReduceOp op);

// Receive `data` from rank `from` and forward it to rank `to` while it arrives. The source passes a negative `from`, and the last rank a
// negative `to`.
Status relay(Comm& comm, int from, int to, Bytes data);

// ---- Conversion of 16-bit floats ------------------------------------------------------------------------------------

// Return the values in their accumulation type. This is `data` itself or, for 16-bit floats, a float32 copy in scratch slot `slot`.
std::byte* widened(Comm& comm, int slot, std::byte* data, size_t count, DType d);
// Convert elements [first, first + count) of `wide` back to `data`. Does nothing if both are the same memory.
void narrowed(std::byte* data, const std::byte* wide, size_t first, size_t count, DType d);

// Return the index of the first element of slice i when `count` elements are split into n slices.
constexpr size_t slice_at(size_t count, int n, int i) {
  const size_t q = count / n, r = count % n;
  return q * i + (static_cast<size_t>(i) < r ? i : r);
}

// Scratch slots of the algorithms over links. A Comm and its `local` and `cross` comms can share one Scratch.
// Algorithms in shared memory use lower slots.
enum LinkSlot : int {
  // Slot for a float32 copy of the data.
  kSlotWide = 16,
  // Slot for data received from a peer.
  kSlotTheirs,
  // Slot for data received from a peer, converted to float32.
  kSlotTheirsWide,
  kSlotOffsets,
  kSlotCounts,
  kSlotSources,
  // Slots of a hierarchical allreduce, whose data stay in use while another algorithm runs between hosts.
  kSlotHierarchyWide,
  kSlotHierarchySlice,
  kSlotHierarchyCounts,
  // Slot for this rank's encoded contribution to a compressed allreduce, and later for the encoded result.
  kSlotCoded,
  // Slot for the encoded contributions of all ranks to this rank's slice.
  kSlotCodedTheirs,
  kSlotCodedCounts,
  kSlotCodedFloats,
  // Slot for the 16-bit result of Adasum.
  kSlotAdasum,
  // Slots for the messages of a guarded allreduce, which are kept between calls. No other collective uses these slots.
  kSlotGuardMine,
  kSlotGuardTheirs,
};

// Order of the rounds in algorithms where every rank exchanges data directly with every other rank.
//
// Ranks a and b exchange data in round (a + b) mod size, so both agree on the round, and each rank has at most one partner per round. A
// window of consecutive rounds runs at the same time, which bounds the number of active connections. Ranks never deadlock: in the earliest
// unfinished window of the job, both sides of every transfer are present.

inline constexpr int kPairwiseWindow = 16;

// Return the maximum number of bytes that one rank contributes to another per round. A rank holds the contributions of all `ranks` ranks,
// which together take about 16 MiB. The result is a multiple of every element size.
constexpr size_t block_of_contributions(size_t ranks) { return std::clamp<size_t>((16u << 20) / ranks / 64 * 64, 64 << 10, 2 << 20); }

// Run one transfer with every other rank of the process set. transfer(peer) returns the transfer.
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

// Folding for the hypercube algorithms when the number of ranks is not a power of two. Let p be the largest power of
// two <= size and r = size - p. First, for i < r, ranks 2i and 2i + 1 combine their values in rank 2i. The remaining
// ranks are numbered by places: rank 2i has place i, and ranks from 2r on have the places from r on. At the end, rank
// 2i sends the result to rank 2i + 1. Folding is the first step of the canonical order of reductions
// (collectives/reduce.h).

struct Fold {
  // Number of ranks that remain after folding: a power of two.
  int places;
  // Number of pairs of ranks that were folded into one rank each.
  int folded;
  // Index of this rank among the ranks that remain, or -1 if its values were folded into another rank's.
  int place;

  static Fold of(int rank, int size) {
    const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    const int r = size - p;
    const int place = rank >= 2 * r ? rank - r : rank % 2 == 0 ? rank / 2 : -1;
    return {p, r, place};
  }
  int rank_at(int place_of_it) const { return place_of_it < folded ? 2 * place_of_it : place_of_it + folded; }
  bool pairs(int rank) const { return rank < 2 * folded; }
  // True if the rank with this index among the remaining ranks starts with the sum of two ranks' values, not only with its own.
  bool begins_with_sum(int place_of_it) const { return place_of_it < folded; }
};

// Values during an allreduce. 16-bit floats are added in float32 and rounded once, at the end. A rank's initial values
// can be sent as 16 bits, but sums must be sent as float32.
struct AllreduceValues {
  // This rank's values of type `d`. The result overwrites them.
  std::byte* data;
  // Values in the accumulation type: either `data` itself or a copy in scratch memory.
  std::byte* wide;
  size_t count;
  DType d, acc;

  static AllreduceValues of(Comm& comm, std::byte* data, size_t count, DType d) {
    return {data, widened(comm, kSlotWide, data, count, d), count, d, accumulator(d)};
  }
  // Return the memory of elements [lo, hi). own() has them in the accumulation type. outgoing() has them in the type to send, which
  // depends on whether they are sums of several ranks (`sum`).
  Bytes own(size_t lo, size_t hi) const { return {wide + lo * size_of(acc), (hi - lo) * size_of(acc)}; }
  ConstBytes outgoing(bool sum, size_t lo, size_t hi) const {
    return sum ? own(lo, hi) : Bytes(data + lo * size_of(d), (hi - lo) * size_of(d));
  }
  Combine combine(bool sum, ReduceOp op, bool theirs_first) const { return {acc, op, theirs_first, sum ? acc : d}; }
};

// Combine the values of pairs of ranks (see Fold) in one rank of each pair, so that a power of two of ranks remains. `sums` is true if each
// rank's values already are sums of several ranks.
inline Status fold_in(Comm& comm, const Fold& fold, const AllreduceValues& v, ReduceOp op, bool sums = false) {
  if (!fold.pairs(comm.rank)) return {};
  if (fold.place < 0) return send_to(comm, comm.rank - 1, v.outgoing(sums, 0, v.count));
  return exchange_combine(comm, comm.rank + 1, {}, comm.rank + 1, v.own(0, v.count), v.combine(sums, op, false));
}

// Send the algorithm's result to the ranks whose values fold_in() sent to another rank.
inline Status fold_out(Comm& comm, const Fold& fold, Bytes data) {
  if (!fold.pairs(comm.rank)) return {};
  return fold.place < 0 ? recv_from(comm, comm.rank - 1, data) : send_to(comm, comm.rank + 1, data);
}

}  // namespace hvd
