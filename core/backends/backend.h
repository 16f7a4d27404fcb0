// Backend: executes one agreed operation on host memory. The host backend moves bytes through shared memory and
// sockets; the MPI backend uses MPI. The engine has already negotiated, validated and fused the operation. Every call
// blocks until this rank's part is done, and all members of the comm make the same calls in the same order. GPU
// collectives do not use this interface (see engine/device), because no thread ever waits for a GPU: those calls only
// launch work in stream order, which is polled and possibly aborted later.
#pragma once
#include <span>
#include <string_view>

#include "collectives/comm.h"
#include "plan/algorithms.h"

namespace hvd {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  // Return the name of the algorithm that an operation of this size uses, for observers.
  virtual std::string_view algorithm(const Comm&, Collective, DType, WireFormat, size_t bytes) const {
    (void)bytes;
    return name();
  }

  // Reduce the concatenation of `segments` over the members, then scale the result. `op` is sum, min, max or product.
  // For floats on a power of two of members it can also be adasum, which treats each segment separately.
  virtual Status allreduce(Comm&, const Segments& segments, DType, ReduceOp, const Scale&) = 0;
  // Sum float32 values that are sent in a compressed encoding. `residuals` is described in collectives/collectives.h.
  virtual Status allreduce_compressed(Comm&, const Segments& segments, std::span<float* const> residuals, WireFormat, const Scale&) = 0;
  // True if the engine may run this allreduce as a guarded allreduce (collectives/guarded.h), a recursive doubling that
  // also carries the readiness vote. It must give the same bits as allreduce() and take about the same time. All
  // members must return the same answer.
  virtual bool may_be_guarded(const Comm&, size_t count, DType) const = 0;

  // `root` is a set rank.
  virtual Status broadcast(Comm&, std::byte* data, size_t bytes, int root) = 0;
  // `bytes` holds the size of each set rank's part.
  virtual Status allgather(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes) = 0;
  virtual Status alltoall(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                          std::span<const size_t> recv_bytes) = 0;
  // `counts` holds the number of elements that each set rank receives.
  virtual Status reducescatter(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp,
                               const Scale&) = 0;
  virtual Status barrier(Comm&) = 0;

  // Release what was created for this comm, because its process set was removed. All members call this at the same
  // point of the order of operations.
  virtual void set_removed(const Comm&) {}
};

}  // namespace hvd
