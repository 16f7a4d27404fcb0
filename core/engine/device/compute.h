// What a device computes for the engine, by the kernels of core/kernels: reductions in THE order of collectives/reduce.h and scaling, both
// with the CPU's bits, and many tensors at once into one buffer or out of it.
//
// Everything is on a stream: addresses are the device's, whoever calls holds a Turn, and nothing waits for the device.
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

  // Before anything else, and before anything waits for other ranks: see Device::load_kernels(). An error: this device has no kernels.
  Status load() { return device_->load_kernels(); }

  // The most sources or destinations of a reduction.
  static constexpr size_t kMost = kernels::kMostSources;
  // Has it the operation? Adasum it has not.
  static bool reduces(ReduceOp op) { return kernels::op_of(op).has_value(); }

  // Elements [begin, end) of all sources, combined, scaled, into each destination at the same place; average: a sum, whose divisor is in
  // `scale`. A destination may be one of the sources; otherwise none overlaps another.
  Status reduce(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::span<std::byte* const> destinations,
                uint64_t begin, uint64_t end, const Scale& scale, Device::Stream stream);

  // The two may be the same.
  Status scale(DType dtype, std::byte* to, const std::byte* from, uint64_t elements, const Scale& scale, Device::Stream stream);

  // One tensor on its way into a buffer, or out of it.
  struct Move {
    const std::byte* from;  // null: zeros
    std::byte* to;
    uint64_t elements;
  };
  // May `pack` turn the one into the other?
  static bool casts(DType from, DType to) { return kernels::pack_of(from, to).has_value(); }
  // All moves, each cast and then scaled and rounded once; 512 of them are one launch. Where the types are equal a source may be its own
  // destination.
  Status pack(DType from, DType to, std::span<const Move> moves, const Scale& scale, Device::Stream stream);

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace hvd
