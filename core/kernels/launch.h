// What a host does before it launches a kernel of kernels.cu: its name, its parameters, how many blocks. Pure; who calls a driver is in
// core/devices.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "kernels/parameters.h"

namespace hvd::kernels {

// The kernels as text for a driver, terminated by a zero byte: PTX 8.1 for compute capability 7.0 and above (drivers from 530 on).
extern const char kPtx[];
extern const size_t kPtxBytes;  // with the zero

struct Kernel {
  const char* name;
  size_t parameter_bytes;
};

// All of them. Whoever loads the module launches each once before there is anything to wait for, with parameters that are all zeros, which
// do nothing: a driver may load functions late, and wait for the device then.
std::span<const Kernel> all();

// Positions in all().
size_t reduce_of(DType d);
size_t scale_of(DType d);
size_t pack_of(DType d);
std::optional<size_t> pack_of(DType from, DType to);  // equal types, or a cast of table.h; else nothing
size_t pack_bytes_of();

// The operation of reduce_<dtype>; nothing for adasum. Average is a sum that is scaled.
std::optional<Op> op_of(ReduceOp op);

// x * factor / divisor, as scale() in collectives/reduce.h.
Scaling scaling_of(double factor, int64_t divisor);

struct Geometry {
  uint32_t blocks, threads;
};

// For reduce and scale of so many elements. multiprocessors: of the device, at least 1.
Geometry geometry(uint64_t elements, size_t element_bytes, int multiprocessors);

// What one of `parts` ranks reduces where each reduces a part: [begin, end), cut at multiples of 512 bytes; parts at the end may be empty.
struct Slice {
  uint64_t begin, end;
};
Slice slice_of(uint64_t elements, size_t element_bytes, uint64_t part, uint64_t parts);

// One tensor on its way into a fusion buffer or out of it; source 0: zeros.
struct Move {
  uint64_t source, destination, elements;
};

// Takes as many of `moves` as one launch can hold and returns how many those are. element_bytes: of the wider side, 1 for pack_bytes.
// The scaling is left to the caller.
size_t fill(PackParameters* parameters, std::span<const Move> moves, size_t element_bytes, int multiprocessors);

// For what `fill` has filled.
Geometry geometry(const PackParameters& parameters);

}  // namespace hvd::kernels
