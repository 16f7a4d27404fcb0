// Data flow shared by the loops of all algorithms over links. Private to this layer.
#pragma once
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

}  // namespace hvd
