// Bytes under way, for the algorithms over links: what all of their loops share. Private to this floor.
#pragma once
#include <span>
#include <string>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// ---- one step of one direction: moves what can be moved now and shortens the span ----------------------------------------
Status advance_out(const Comm& comm, int peer, ConstBytes& out, bool& moved);
Status advance_in(const Comm& comm, int peer, Bytes& in, bool& moved);

// For messages: "rank 3 (host a, pid 17)"; "data from rank 3 (...) and rank 4 (...) to take data".
std::string peer_name(const Comm& comm, int peer);
std::string pending_text(const Comm& comm, int to, bool sending, int from, bool receiving);

// Are there sockets among the links?
bool over_sockets(const Comm& comm);

// Calls step(moved, done) until it is done, fails, or moves nothing for comm.timeout. `text()` says what is waited for.
template <class Text, class Step>
Status pump(Comm& comm, const Text& text, Step step) {
  Wait wait(*comm.waiter, comm.timeout, [&text] { return text(); });  // one pointer: std::function does not allocate
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
  DType dtype;  // of the values in memory; an accumulation type
  ReduceOp op;
  bool theirs_first;  // the peer's value is the operand of the lower rank
  DType wire = dtype;  // what arrives, where that is not `dtype`: the 16-bit floats that a float32 value begins with
};

// Data that arrives from one peer for a range of memory: stored there, or combined with what is there. Combining works on blocks
// that fit the cache, as soon as they are complete, while the next ones are under way.
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
  Bytes target_, window_, rest_;  // rest_: what is still to arrive for this window
  size_t ready_ = 0;
  void open_window();
};

// Sends `out` while combining what arrives into `mine` (which must not overlap `out`). Each direction has its own format.
Status exchange_combine(Comm& comm, int to, ConstBytes out, int from, Bytes mine, const Combine& combine);

// Both sides send all of `mine` to each other and then hold the combination in its place. `theirs`: memory of that size. Combines
// what has both arrived and left, while the rest is under way.
Status swap_combine(Comm& comm, int peer, Bytes mine, std::byte* theirs, const Combine& combine);

// One trip around the ring. Slice i of `base` is [offsets[i], offsets[i + 1]) in bytes, one per rank. I send slices first,
// first - 1 and so on (size - 1 of them) to the next rank and take first - 1, first - 2 and so on from the previous one; with
// `combine`, each is combined with mine before it travels on. No step waits for another: what has arrived (and is combined) flows
// on.
Status ring_pass(Comm& comm, std::byte* base, std::span<const size_t> offsets, int first, const Combine* combine);

// The same with 16-bit floats, of which `data` has this rank's, and `base` the float32 sums to be. What I begin with travels as it is.
Status ring_pass_halves(Comm& comm, const std::byte* data, DType d, std::byte* base, std::span<const size_t> offsets, int first,
                        ReduceOp op);

// Passes `data` on while it arrives. from < 0: it is mine; to < 0: I am the last.
Status relay(Comm& comm, int from, int to, Bytes data);

// ---- 16-bit floats ----------------------------------------------------------------------------------------------------------
// The values in their accumulation type: `data` itself, or its float32 copy in scratch slot `slot`.
std::byte* widened(Comm& comm, int slot, std::byte* data, size_t count, DType d);
// Elements [first, first + count) of `wide` back to `data`. Nothing to do when they are the same memory.
void narrowed(std::byte* data, const std::byte* wide, size_t first, size_t count, DType d);

// Slice i of n of `count` elements begins here.
constexpr size_t slice_at(size_t count, int n, int i) {
  const size_t q = count / n, r = count % n;
  return q * i + (static_cast<size_t>(i) < r ? i : r);
}

// Scratch slots of the algorithms over links (one Scratch may serve a Comm and its local and cross parts). Slots below are for
// algorithms in shared memory.
enum LinkSlot : int {
  kSlotWide = 16,  // float32 copy of the data
  kSlotTheirs,     // what a peer sent
  kSlotTheirsWide,  // the same as float32
  kSlotOffsets,
  kSlotCounts,
  kSlotSources,
  kSlotHierarchyWide,  // in use while another algorithm runs between the hosts
  kSlotHierarchySlice,
  kSlotHierarchyCounts,
  kSlotCoded,        // what travels of a compressed allreduce: my contribution, then the result
  kSlotCodedTheirs,  // everybody's contributions to my part
  kSlotCodedCounts,
  kSlotCodedFloats,
  kSlotAdasum,       // 16-bit result
  kSlotGuardMine,    // collectives/guarded.h: alive between calls, while no other collective runs
  kSlotGuardTheirs,
};

}  // namespace hvd
