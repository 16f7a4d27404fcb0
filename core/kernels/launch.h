// Host code that prepares launches of the kernels in kernels.cu. It determines kernel names, parameters and grid sizes.
// These functions have no side effects; core/devices calls the driver.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "kernels/parameters.h"

namespace hvd::kernels {

// Null-terminated PTX of the kernels for the driver: PTX 8.1 for compute capability 7.0 and above. Drivers from version
// 530 on accept it.
extern const char kPtx[];
// Size of the PTX text in bytes, including the terminating null byte.
extern const size_t kPtxBytes;

struct Kernel {
  const char* name;
  size_t parameter_bytes;
};

// Return all kernels. The loader launches each of them once, before anything waits for other ranks, with all-zero parameters that make it
// do nothing. A driver that loads functions lazily might otherwise wait for the device at a later launch.
std::span<const Kernel> all();

// Return the index of a dtype's reduction kernel in all().
size_t reduce_of(DType d);
size_t scale_of(DType d);
size_t pack_of(DType d);
// Return the index of a kernel in all(), or nullopt if the types differ and table.h does not list the cast.
std::optional<size_t> pack_of(DType from, DType to);
size_t pack_bytes_of();

// Return the operation that reduction kernels execute for `op`, or nullopt for Adasum. It is the sum for averages, which are scaled later.
std::optional<Op> op_of(ReduceOp op);

// Return the scaling x * factor / divisor in the form that the kernels need; see scale() in collectives/reduce.cc.
Scaling scaling_of(double factor, int64_t divisor);

struct Geometry {
  uint32_t blocks, threads;
};

// Return the launch geometry for reducing or scaling `elements` elements. `multiprocessors` is the number of
// multiprocessors of the device, at least 1.
Geometry geometry(uint64_t elements, size_t element_bytes, int multiprocessors);

// Range [begin, end) that one of `parts` ranks reduces. Ranges begin at multiples of 512 bytes, so the last ones can be empty.
struct Slice {
  uint64_t begin, end;
};
Slice slice_of(uint64_t elements, size_t element_bytes, uint64_t part, uint64_t parts);

// One copy between a tensor, or a part of it, and a fusion buffer. The source address 0 means zeros.
struct Move {
  uint64_t source, destination, elements;
};

// Fill `parameters` with as many of `moves` as fit in one launch, and return their number. `element_bytes` is the
// larger of the two element sizes, or 1 for pack_bytes. The caller sets the scale factors in `parameters`.
size_t fill(PackParameters* parameters, std::span<const Move> moves, size_t element_bytes, int multiprocessors);

// Return the launch geometry (numbers of blocks and threads) for parameters that fill() has set up.
Geometry geometry(const PackParameters& parameters);

}  // namespace hvd::kernels
