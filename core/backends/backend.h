// Backend that executes one negotiated operation on host memory. The host backend moves bytes through shared memory and
// sockets; the MPI backend uses MPI. The engine has already negotiated, validated and fused the operation. Every call
// blocks until this rank has finished its part. All ranks of the comm make the same calls in the same order. GPU
// collectives do not use this interface (see engine/device), because no thread ever blocks on a GPU: the engine
// launches them in stream order, polls them and can abort them.
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
  // Return the name of the algorithm for an operation of this size, for observers.
  virtual std::string_view algorithm(const Comm&, Collective, DType, WireFormat, size_t bytes) const {
    (void)bytes;
    return name();
  }

  // Reduce the concatenation of `segments` over all ranks of the comm, then scale the result. `op` is sum, min, max or
  // product. For floats on a power of two ranks, it can also be adasum, which treats each segment separately.
  virtual Status allreduce(Comm&, const Segments& segments, DType, ReduceOp, const Scale&) = 0;
  // Store this rank's data of the next allreduce() where other ranks read them, before it is certain that the allreduce runs. Return false
  // if nothing was stored. If the allreduce does not run, the caller calls NodeGroup::withdraw().
  virtual bool stage_allreduce(Comm&, const Segments&, DType) { return false; }
  // Sum float32 values, which are compressed for the transfer between ranks. For `residuals`, see collectives/collectives.h.
  virtual Status allreduce_compressed(Comm&, const Segments& segments, std::span<float* const> residuals, WireFormat, const Scale&) = 0;
  // True if the engine can run this allreduce as a guarded allreduce (collectives/guarded.h): recursive doubling that
  // also carries the readiness vote. The guarded form must be bitwise identical to allreduce() and take about as long.
  // All ranks must return the same answer.
  virtual bool may_be_guarded(const Comm&, size_t count, DType) const = 0;

  // Broadcast `bytes` bytes at `data`. `root` is the index of the root in the set.
  virtual Status broadcast(Comm&, std::byte* data, size_t bytes, int root) = 0;
  // Gather the contributions of all ranks. `bytes` holds the size of the contribution of each rank of the set.
  virtual Status allgather(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes) = 0;
  virtual Status alltoall(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                          std::span<const size_t> recv_bytes) = 0;
  // Reduce `in` and scatter the result. `counts` holds the number of elements that each rank of the set receives.
  virtual Status reducescatter(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp,
                               const Scale&) = 0;
  virtual Status barrier(Comm&) = 0;

  // Release the resources of this comm when its process set is removed. All ranks of the comm must call this at the
  // same point in the order of operations.
  virtual void set_removed(const Comm&) {}
};

}  // namespace hvd
