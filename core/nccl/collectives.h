// The collectives on a communicator and a stream. Each enqueues and returns; completion is the stream's. The calling thread has the
// device's context current and is the only one that launches, in the same order on all ranks and for all communicators.
//
// Memory is the device's. Nothing here checks lengths: the ranks agreed on them before. An error in the middle leaves the thread outside of
// any group, and the communicator fit for nothing but abort().
#pragma once
#include <cstddef>
#include <span>

#include "base/status.h"
#include "nccl/communicator.h"
#include "nccl/decide.h"

namespace hvd::nccl {

struct Piece {
  const void* in;
  void* out;  // may be in
  size_t count;  // elements
};

// Reduces each piece over the members; several pieces in one group. What `reduction` leaves `before` and `after` is the caller's.
Status allreduce(Communicator& c, Stream stream, const Reduction& reduction, std::span<const Piece> pieces);

// in place. root: rank of the communicator.
Status broadcast(Communicator& c, Stream stream, void* data, size_t bytes, int root);

// Part r of `out` has bytes[r] bytes and comes from rank r; parts follow one another. `in` may be this rank's part of `out`.
Status allgather(Communicator& c, Stream stream, const void* in, void* out, std::span<const size_t> bytes);

// send_bytes, recv_bytes: by rank; parts follow one another. What a rank sends to itself is copied.
Status alltoall(Communicator& c, Stream stream, const void* in, std::span<const size_t> send_bytes, void* out,
                std::span<const size_t> recv_bytes);

// Part r of the reduced `in` has counts[r] elements and becomes rank r's `out`, which may be its own part of `in`.
Status reducescatter(Communicator& c, Stream stream, const Reduction& reduction, const void* in, void* out, std::span<const size_t> counts);

}  // namespace hvd::nccl
