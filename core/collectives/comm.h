// Comm: one process set as seen by one member, with everything that a collective needs. A collective is a free function
// `Status allreduce_ring(Comm&, ...)`. It moves bytes through `links` (or through `node` if all members share this
// host's memory) and waits only through `waiter`.
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

// Scratch memory that only grows and is kept between operations. Not thread-safe. Each use has its own slot, so nested
// algorithms do not overwrite each other's data.
class Scratch {
 public:
  std::byte* get(int slot, size_t bytes);  // Returns memory aligned to 64 bytes with undefined contents.
  size_t held() const { return held_.load(std::memory_order_relaxed); }  // Bytes held; callable from any thread.

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

// One process set as seen by one member. It does not own the objects that it points to.
struct Comm {
  int rank = 0;                 // this rank's index in the set
  int size = 1;
  std::vector<Link*> links;     // Link to each set rank. Null for this rank, and for all ranks if `node` is set.
  NodeGroup* node = nullptr;    // Set if all members are on this host.
  Waiter* waiter = nullptr;
  Scratch* scratch = nullptr;
  Counter* traffic = nullptr;   // Counts bytes sent over links; null if they are not counted.
  double timeout = 30;          // Seconds without progress after which an operation fails.
  Tuning tuning;                // Limits of the algorithms, equal on all members.

  // The hierarchy, described in collectives/allreduce_hierarchical.cc. It is set if the set spans several hosts and at
  // least one host has several members; otherwise null.
  Comm* local = nullptr;        // Comm of the members on this host; its `node` is set.
  // Comm of the members that have this rank's local index on their hosts; null if that index is not below `slices`.
  Comm* cross = nullptr;
  int slices = 0;               // smallest number of members on any host of the set

  std::vector<int> global_ranks;    // Global rank of each set rank, for messages.
  std::vector<std::string> labels;  // Label of each set rank, for messages. If empty, ranks appear as "rank 3".

  // Return the set rank of a global rank, or -1 if it is not a member.
  int rank_of(int global) const;
};

// ---- Moving bytes over links ----------------------------------------------------------------------------------------

// Block until all bytes are moved, an error occurs, or comm.timeout passes without progress. Errors name the global
// rank of the peer.
Status send_to(Comm& comm, int peer, ConstBytes data);
Status recv_from(Comm& comm, int peer, Bytes data);
// Send and receive at the same time. This cannot deadlock, however small the socket buffers are. The two peers may be
// the same rank, and either buffer may be empty.
Status exchange(Comm& comm, int to, ConstBytes out, int from, Bytes in);

// Run many transfers at once, as for a pairwise all-to-all, until all are complete. There may be one transfer per peer.
// The spans are empty afterwards.
struct Transfer {
  int peer;
  ConstBytes out;  // Bytes to send to the peer.
  Bytes in;        // Buffer for the bytes from the peer.
};
Status exchange_all(Comm& comm, std::span<Transfer> transfers);

// ---- Concatenated tensors and scaling -------------------------------------------------------------------------------

// The concatenation of several tensors of one dtype. A fused operation works on it without packing the tensors first.
struct Segments {
  struct Piece {
    const std::byte* in;  // Input values; null stands for zeros (a rank that has joined).
    std::byte* out;       // Memory for the result; null drops it (a rank that has joined). Equal to `in` for an operation in place.
    size_t count;         // Number of elements.
  };
  std::span<const Piece> pieces;
  size_t total = 0;       // total number of elements of all pieces

  // gather() copies elements [first, first + count) of the concatenated inputs to `to`; scatter() copies `from` to the
  // same elements of the outputs.
  void gather(size_t first, size_t count, size_t element, std::byte* to) const;
  void scatter(size_t first, size_t count, size_t element, const std::byte* from) const;
};

// Scaling after the reduction: x * factor / divisor. Integers are computed in double and truncated, floats in their
// accumulation type. Average is Sum with the number of ranks as divisor.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

}  // namespace hvd
