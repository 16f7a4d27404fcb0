// Comm: what a collective needs to know about one process set, seen from one member. A collective is a free function
//   Status allreduce_ring(Comm&, ...);
// that moves bytes through `links` (or `node`, when all members share this host's memory) and waits only through `waiter`.
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

// Grow-only scratch memory, kept between operations. One a Comm user at a time; slots let nested algorithms not collide.
class Scratch {
 public:
  std::byte* get(int slot, size_t bytes);  // 64-byte aligned; contents undefined
  size_t held() const { return held_.load(std::memory_order_relaxed); }  // bytes, for the memory figures; any thread may ask

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

struct Comm {
  int rank = 0;                 // my index in the set
  int size = 1;
  std::vector<Link*> links;     // by set rank; null for myself (and, when `node` is there, for everybody)
  NodeGroup* node = nullptr;    // all members live on this host
  Waiter* waiter = nullptr;
  Scratch* scratch = nullptr;
  Counter* traffic = nullptr;   // bytes that went out over links, since the start; null: not counted
  double timeout = 30;          // seconds without progress
  Tuning tuning;                // the same on all members

  // Hierarchy, when the set spans several hosts and some host has several members: my host's members, and for each slice of the
  // data one member per host. Null otherwise. See collectives/allreduce_hierarchical.h.
  Comm* local = nullptr;        // members on my host; local->node is set
  Comm* cross = nullptr;        // members with my index on all hosts; null when my index is >= slices
  int slices = 0;               // smallest number of members on any host

  std::vector<int> global_ranks;    // by set rank, for messages
  std::vector<std::string> labels;  // likewise; empty: "rank 3"

  // Set rank of a global one; -1: it is no member.
  int rank_of(int global) const;
};

// ---- moving bytes over links --------------------------------------------------------------------------------------------
// Block until all is moved, an error, or no progress for comm.timeout. Errors name the peer's global rank.
Status send_to(Comm& comm, int peer, ConstBytes data);
Status recv_from(Comm& comm, int peer, Bytes data);
// Both at once, never deadlocking however small the socket buffers are. Peers may be equal. Either may be empty.
Status exchange(Comm& comm, int to, ConstBytes out, int from, Bytes in);

// Many transfers at once (pairwise all-to-all): progress on all until all are done. At most one per peer; the spans are used up.
struct Transfer {
  int peer;
  ConstBytes out;  // sent to peer
  Bytes in;        // received from peer
};
Status exchange_all(Comm& comm, std::span<Transfer> transfers);

// ---- tensors seen as one ------------------------------------------------------------------------------------------------
// A fused operation works on the concatenation of several tensors of one dtype, without copying them together first.
struct Segments {
  struct Piece {
    const std::byte* in;  // null: counts as zeros (a rank that has joined)
    std::byte* out;       // null: result is dropped (likewise). in == out: in place
    size_t count;         // elements
  };
  std::span<const Piece> pieces;
  size_t total = 0;       // elements

  // Copies elements [first, first + count) of the concatenated inputs to `to`, or of `from` to the outputs.
  void gather(size_t first, size_t count, size_t element, std::byte* to) const;
  void scatter(size_t first, size_t count, size_t element, const std::byte* from) const;
};

// What happens to a value after the reduction: x * factor / divisor, in double for integers (truncating), in the accumulation type
// for floats. Average is Sum with divisor n.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

}  // namespace hvd
