// Comm: one process set as seen by one member, as a collective needs it. A collective is a free function
//   Status allreduce_ring(Comm&, ...);
// which moves bytes through `links` (or through `node` if all members share this host's memory) and waits only through
// `waiter`.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/counter.h"
#include "base/dtype.h"
#include "base/status.h"
#include "plan/tuning.h"
#include "transport/link.h"
#include "transport/node_group.h"
#include "transport/waiter.h"

namespace hvd {

// Grow-only scratch memory, kept between operations. Not thread-safe; slots keep nested algorithms from colliding.
class Scratch {
 public:
  std::byte* get(int slot, size_t bytes);  // memory is 64-byte aligned; contents undefined
  size_t held() const { return held_.load(std::memory_order_relaxed); }  // bytes held; callable from any thread

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    size_t bytes = 0;
  };
  std::vector<Block> blocks_;
  std::atomic<size_t> held_{0};
};

// One process set as seen by one member. Does not own what it points to.
struct Comm {
  int rank = 0;                 // this rank's index in the set
  int size = 1;
  std::vector<Link*> links;     // link to each set rank; null for this rank (and for all ranks if `node` is set)
  NodeGroup* node = nullptr;    // set if all members are on this host
  Waiter* waiter = nullptr;
  Scratch* scratch = nullptr;
  Counter* traffic = nullptr;   // counts bytes sent over links; null: not counted
  double timeout = 30;          // seconds without progress after which an operation fails
  Tuning tuning;                // equal on all members

  // Hierarchy, set if the set spans several hosts and some host has several members; otherwise null. See
  // collectives/allreduce_hierarchical.cc.
  Comm* local = nullptr;        // comm of the members on this host; local->node is set
  // Comm of the members with this rank's local index on all hosts; null if that index is >= slices.
  Comm* cross = nullptr;
  int slices = 0;               // smallest number of members on any host

  std::vector<int> global_ranks;    // global rank of each set rank, for messages
  std::vector<std::string> labels;  // label of each set rank, for messages; empty: "rank 3"

  // Return the set rank of a global rank; -1 if it is not a member.
  int rank_of(int global) const;
};

// ---- moving bytes over links --------------------------------------------------------------------------------------------
// Block until all bytes are moved, an error occurs, or comm.timeout passes without progress. Errors name the peer's
// global rank.
Status send_to(Comm& comm, int peer, ConstBytes data);
Status recv_from(Comm& comm, int peer, Bytes data);
// Send and receive at the same time; cannot deadlock however small the socket buffers are. The peers may be equal, and
// either buffer may be empty.
Status exchange(Comm& comm, int to, ConstBytes out, int from, Bytes in);

// Run many transfers at once (pairwise all-to-all) until all are complete. At most one per peer; the spans are
// consumed.
struct Transfer {
  int peer;
  ConstBytes out;  // bytes to send to the peer
  Bytes in;        // buffer for bytes from the peer
};
Status exchange_all(Comm& comm, std::span<Transfer> transfers);

// ---- concatenated tensors -------------------------------------------------------------------------------------------
// The concatenation of several tensors of one dtype, on which a fused operation works without packing them first.
struct Segments {
  struct Piece {
    const std::byte* in;  // null: the input is zeros (a rank that has joined)
    std::byte* out;       // null: the result is dropped (a rank that has joined). in == out: in place
    size_t count;         // number of elements
  };
  std::span<const Piece> pieces;
  size_t total = 0;       // number of elements of all pieces

  // Copy elements [first, first + count) of the concatenated inputs to `to`, or `from` to those of the outputs.
  void gather(size_t first, size_t count, size_t element, std::byte* to) const;
  void scatter(size_t first, size_t count, size_t element, const std::byte* from) const;
};

// Scaling after the reduction: x * factor / divisor, in double for integers (truncated), in the accumulation type for
// floats. Average is Sum with divisor n.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

}  // namespace hvd
