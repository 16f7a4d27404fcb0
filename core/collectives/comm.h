// A Comm is a process set as seen by one rank, with everything that a collective needs. A collective is a free function
// `Status allreduce_ring(Comm&, ...)`. It moves bytes through `links`, or through `node` if all ranks share this host's
// memory. It waits only through `waiter`.
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

// Scratch memory. It is reused between operations and never shrinks. Not thread-safe. Each use has a separate slot, so
// nested algorithms do not overwrite each other's data.
class Scratch {
 public:
  // Return the memory of a slot, at least `bytes` bytes. It is aligned to 64 bytes and has undefined contents.
  std::byte* get(int slot, size_t bytes);
  // Return the number of bytes of scratch memory allocated. Callable from any thread.
  size_t held() const { return held_.load(std::memory_order_relaxed); }

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
  int rank = 0;
  int size = 1;
  // Link to each rank of the set. The link is null for this rank, and for all ranks if `node` is set.
  std::vector<Link*> links;
  // Shared memory of the host. Set only if all ranks are on this host.
  NodeGroup* node = nullptr;
  Waiter* waiter = nullptr;
  Scratch* scratch = nullptr;
  // Counter of bytes sent over links, or null for no counting.
  Counter* traffic = nullptr;
  // Seconds without progress after which an operation fails.
  double timeout = 30;
  // Size thresholds of the algorithms, equal on all ranks.
  Tuning tuning;

  // Comm of the set's ranks on this host, with shared memory (`node`), for hierarchical algorithms. `local` and `cross` are null unless the
  // set spans several hosts and has several ranks on at least one of them.
  Comm* local = nullptr;
  // Comm of this rank and the ranks on other hosts with the same local index. Null unless that index is below `slices`.
  Comm* cross = nullptr;
  // Smallest number of ranks on any host of the process set.
  int slices = 0;

  // Global rank of each rank of the set, for error messages.
  std::vector<int> global_ranks;
  // Label of each rank of the set, for error messages. If empty, ranks appear as "rank 3".
  std::vector<std::string> labels;

  // Return the index in the set of a global rank, or -1 if that rank is not in the set.
  int rank_of(int global) const;
};

// ---- Moving bytes over links ----------------------------------------------------------------------------------------

// Block until all bytes are moved, an error occurs, or comm.timeout passes without progress. Error messages name the
// global rank of the peer.
Status send_to(Comm& comm, int peer, ConstBytes data);
Status recv_from(Comm& comm, int peer, Bytes data);
// Send and receive at the same time. This cannot deadlock, even with small socket buffers. The two peers can be the
// same rank, and either buffer can be empty.
Status exchange(Comm& comm, int to, ConstBytes out, int from, Bytes in);

// Run several transfers concurrently, as in a pairwise all-to-all, and return when all are complete. Each peer has at
// most one transfer. On return, the spans are empty.
struct Transfer {
  int peer;
  // Bytes to send to this peer.
  ConstBytes out;
  // Buffer for the bytes from this peer.
  Bytes in;
};
Status exchange_all(Comm& comm, std::span<Transfer> transfers);

// ---- Concatenated tensors and scaling -------------------------------------------------------------------------------

// Concatenation of several tensors of one dtype, which a fused operation can process without packing them.
struct Segments {
  struct Piece {
    // Input values of this tensor. Null if this rank has called join() and contributes zeros.
    const std::byte* in;
    // Memory for this tensor's result; equal to `in` for an in-place operation. Null if this rank has called join()
    // and needs no result.
    std::byte* out;
    size_t count;
  };
  std::span<const Piece> pieces;
  size_t total = 0;

  // Copy elements [first, first + count) of the concatenated inputs to `to`, or copy `from` to the same elements of the
  // outputs.
  void gather(size_t first, size_t count, size_t element, std::byte* to) const;
  void scatter(size_t first, size_t count, size_t element, const std::byte* from) const;
};

// Scaling after the reduction: x * factor / divisor. Integers are computed in double and truncated; floats are computed
// in their accumulation type. An average is a sum with the number of ranks as divisor.
struct Scale {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

}  // namespace hvd
