// Collectives on a communicator and a stream. Each function only enqueues work on the stream. The device's context must
// be current on the calling thread. Only one thread may launch work, and it must do so in the same order on all ranks,
// across all communicators.
//
// All pointers are to device memory. Lengths are not checked here, because the ranks have already agreed on them. After
// an error, no NCCL group is open on the thread, and the communicator can only be aborted.
#pragma once
#include <cstddef>
#include <span>

#include "base/status.h"
#include "nccl/communicator.h"
#include "nccl/decide.h"

namespace hvd::nccl {

struct Piece {
  const void* in;
  // Memory for the result of the piece; can be the same as `in`.
  void* out;
  size_t count;
};

// Reduce each piece over all ranks, with several pieces in one group. The caller applies the scaling in
// reduction.before and reduction.after.
Status allreduce(Communicator& c, Stream stream, const Reduction& reduction, std::span<const Piece> pieces);

// Broadcast `data` in place. `root` is a rank of the communicator.
Status broadcast(Communicator& c, Stream stream, void* data, size_t bytes, int root);

// Gather the contributions of all ranks. Part r of `out` has bytes[r] bytes and comes from rank r; the parts are
// consecutive. `in` can be the memory of this rank's part of `out`.
Status allgather(Communicator& c, Stream stream, const void* in, void* out, std::span<const size_t> bytes);

// All-to-all exchange of parts, which are consecutive in rank order. `send_bytes` and `recv_bytes` hold the size for
// each rank. A rank's part for itself is copied locally.
Status alltoall(Communicator& c, Stream stream, const void* in, std::span<const size_t> send_bytes, void* out,
                std::span<const size_t> recv_bytes);

// Reduce `in` and scatter the result. Part r has counts[r] elements and is written to `out` on rank r. `out` can be the
// memory of this rank's part of `in`.
Status reducescatter(Communicator& c, Stream stream, const Reduction& reduction, const void* in, void* out, std::span<const size_t> counts);

}  // namespace hvd::nccl
