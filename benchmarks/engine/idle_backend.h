// Backend that moves no data, so that an operation consists only of its control messages.
#pragma once
#include "backends/backend.h"

namespace hvd {

class IdleBackend final : public Backend {
 public:
  const char* name() const override { return "idle"; }
  Status allreduce(Comm&, const Segments&, DType, ReduceOp, const Scale&) override { return {}; }
  Status allreduce_compressed(Comm&, const Segments&, std::span<float* const>, WireFormat, const Scale&) override { return {}; }
  bool may_be_guarded(const Comm&, size_t, DType) const override { return true; }
  Status broadcast(Comm&, std::byte*, size_t, int) override { return {}; }
  Status allgather(Comm&, const std::byte*, std::byte*, std::span<const size_t>) override { return {}; }
  Status alltoall(Comm&, const std::byte*, std::span<const size_t>, std::byte*, std::span<const size_t>) override { return {}; }
  Status reducescatter(Comm&, const std::byte*, std::byte*, std::span<const size_t>, DType, ReduceOp, const Scale&) override { return {}; }
  Status barrier(Comm&) override { return {}; }
};

}  // namespace hvd
