// Host side of launching the kernels of kernels.cu: names, parameters, numbers of blocks. Pure; core/devices calls the
// driver.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "kernels/parameters.h"

namespace hvd::kernels {

// The kernels as text for a driver, zero-terminated: PTX 8.1 for compute capability 7.0 and above (drivers from 530
// on).
extern const char kPtx[];
extern const size_t kPtxBytes;  // including the zero

struct Kernel {
  const char* name;
  size_t parameter_bytes;
};

// All kernels. The loader launches each once with all-zero parameters, which do nothing, before anything waits for
// other ranks: a driver may otherwise load a function at its first launch and wait for the device then.
std::span<const Kernel> all();

// Positions in all().
size_t reduce_of(DType d);
size_t scale_of(DType d);
size_t pack_of(DType d);
std::optional<size_t> pack_of(DType from, DType to);  // equal types, or a cast of table.h; otherwise nullopt
size_t pack_bytes_of();

// Return the operation of reduce_<dtype>; nullopt for adasum. Average is a scaled sum.
std::optional<Op> op_of(ReduceOp op);

// Return x * factor / divisor as the kernels need it, see scale() in collectives/reduce.cc.
Scaling scaling_of(double factor, int64_t divisor);

struct Geometry {
  uint32_t blocks, threads;
};

// Return the geometry for reduce and scale of `elements` elements. multiprocessors: of the device, at least 1.
Geometry geometry(uint64_t elements, size_t element_bytes, int multiprocessors);

// Range [begin, end) that one of `parts` ranks reduces, split at multiples of 512 bytes; the last parts may be empty.
struct Slice {
  uint64_t begin, end;
};
Slice slice_of(uint64_t elements, size_t element_bytes, uint64_t part, uint64_t parts);

// One copy between a tensor and a fusion buffer; source 0: zeros.
struct Move {
  uint64_t source, destination, elements;
};

// Take as many of `moves` as one launch can hold; return their number. element_bytes: of the wider side, 1 for
// pack_bytes. The caller sets the scaling.
size_t fill(PackParameters* parameters, std::span<const Move> moves, size_t element_bytes, int multiprocessors);

// Return the geometry for parameters filled by fill().
Geometry geometry(const PackParameters& parameters);

}  // namespace hvd::kernels
