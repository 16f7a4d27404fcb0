// Device computation with the kernels of core/kernels: reductions in the canonical order of collectives/reduce.h,
// scaling, and packing many tensors into one buffer and unpacking them. Results are bitwise identical to those of the
// CPU.
//
// Every function takes device addresses and queues its work on a stream. Callers must have entered the device with a
// Device::Turn. No function waits for the device.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/dtype.h"
#include "collectives/comm.h"
#include "devices/device.h"
#include "kernels/launch.h"

namespace hvd {

class Compute {
 public:
  explicit Compute(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  // Load the kernels. Call this before the other functions, and before anything waits for other ranks (see
  // Device::load_kernels()). An error means that this device cannot run the kernels.
  Status load() { return device_->load_kernels(); }

  // Maximum number of sources, and of destinations, in one reduction.
  static constexpr size_t kMax = kernels::kMostSources;
  // True if there is a kernel for the operation. Only Adasum has none.
  static bool reduces(ReduceOp op) { return kernels::op_of(op).has_value(); }

  // Combine elements [begin, end) of all sources, scale them, and store them at the same positions in each destination. An average is a sum
  // whose `scale` has a divisor. A destination can be one of the sources, but must not partly overlap a source.
  Status reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                uint64_t begin, uint64_t end, const Scale& scale, Device::Stream stream);

  // Scale elements of `from` and store them at `to`, which can be the same memory.
  Status scale(DType dtype, std::byte* to, const std::byte* from, uint64_t elements, const Scale& scale, Device::Stream stream);

  // One copy between a tensor and a buffer.
  struct Move {
    // Source memory of the copy, or null for zeros.
    const std::byte* from;
    std::byte* to;
    uint64_t elements;
  };
  // True if pack() can convert from dtype `from` to dtype `to`.
  static bool casts(DType from, DType to) { return kernels::pack_of(from, to).has_value(); }
  // Execute all copies in `moves`, with one kernel launch per 512 copies. Each value is converted, scaled and rounded
  // once. If the types are equal, a source can also be the destination.
  Status pack(DType from, DType to, std::span<const Move> moves, const Scale& scale, Device::Stream stream);

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace hvd
