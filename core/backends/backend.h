// Backend: who carries out one agreed operation on memory of the host. The one there moves bytes through shared memory and sockets; others
// for such memory (MPI) plug in here. The engine has agreed, validated and fused before it calls; every call blocks until this rank's part
// is done, and all members of the comm make the same calls in the same order. What works on a GPU does not (engine/device): nobody waits
// for a GPU, so a call there returns what is launched, in an order of streams, and has to be looked at and aborted later.
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
  // By which of its algorithms it carries out an operation of so many bytes, for whoever looks on.
  virtual std::string_view algorithm(const Comm&, Collective, DType, WireFormat, size_t bytes) const {
    (void)bytes;
    return name();
  }

  // Reduces the concatenation of `segments` over the members; scale follows the reduction. op: sum, min, max, product, or for
  // floats on a power of two of members adasum, which takes each segment on its own.
  virtual Status allreduce(Comm&, const Segments& segments, DType, ReduceOp, const Scale&) = 0;
  // The same for float32 that travels in a smaller form; op: sum. residuals: see collectives/collectives.h.
  virtual Status allreduce_compressed(Comm&, const Segments& segments, std::span<float* const> residuals, WireFormat, const Scale&) = 0;
  // May the engine do this allreduce itself, as a recursive doubling in which agreement rides on the data (collectives/guarded.h)? Only
  // where that gives the same bits as allreduce() and takes hardly more time. All members give the same answer.
  virtual bool may_be_guarded(const Comm&, size_t count, DType) const = 0;

  // root: set rank.
  virtual Status broadcast(Comm&, std::byte* data, size_t bytes, int root) = 0;
  // bytes: by set rank.
  virtual Status allgather(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> bytes) = 0;
  virtual Status alltoall(Comm&, const std::byte* in, std::span<const size_t> send_bytes, std::byte* out,
                          std::span<const size_t> recv_bytes) = 0;
  // counts: elements by set rank.
  virtual Status reducescatter(Comm&, const std::byte* in, std::byte* out, std::span<const size_t> counts, DType, ReduceOp,
                               const Scale&) = 0;
  virtual Status barrier(Comm&) = 0;

  // The process set of this comm is gone: what was made for it is needed no more. All members call it at the same place.
  virtual void set_removed(const Comm&) {}
};

}  // namespace hvd
