// Computation on a device with the kernels of core/kernels: reductions in the canonical order of collectives/reduce.h
// and scaling, both with the same bits as the CPU, and packing many tensors into or out of a buffer.
//
// All work is in stream order on device addresses. Callers hold a Turn; nothing waits for the device.
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

  // Load the kernels, before any other call and before anything waits for other ranks; see Device::load_kernels(). An
  // error means that this device has no kernels.
  Status load() { return device_->load_kernels(); }

  // Maximum number of sources or destinations of a reduction.
  static constexpr size_t kMax = kernels::kMostSources;
  // True if the operation is available; all but Adasum are.
  static bool reduces(ReduceOp op) { return kernels::op_of(op).has_value(); }

  // Combine elements [begin, end) of all sources, scale, and store them to each destination at the same place. Average
  // is a sum whose divisor is in `scale`. A destination may be one of the sources; otherwise none may overlap.
  Status reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                uint64_t begin, uint64_t end, const Scale& scale, Device::Stream stream);

  // `to` and `from` may be equal.
  Status scale(DType dtype, std::byte* to, const std::byte* from, uint64_t elements, const Scale& scale, Device::Stream stream);

  // One copy between a tensor and a buffer.
  struct Move {
    const std::byte* from;  // null: the source is zeros
    std::byte* to;
    uint64_t elements;
  };
  // True if pack() can convert `from` to `to`.
  static bool casts(DType from, DType to) { return kernels::pack_of(from, to).has_value(); }
  // Execute all moves, each converted, scaled and rounded once; one launch per 512 moves. If the types are equal, a
  // source may be its own destination.
  Status pack(DType from, DType to, std::span<const Move> moves, const Scale& scale, Device::Stream stream);

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace hvd
