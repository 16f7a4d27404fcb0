// Parameters of the device kernels: one struct per kernel, passed by value. Host code fills them (launch.h), and the
// kernels (kernels.cu) read them. A device gets their bytes unchanged, so the layouts are fixed. Addresses are device
// addresses stored as integers, which host code cannot dereference.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hvd::kernels {

// Maximum number of sources, and of destinations, of a reduction.
constexpr uint32_t kMostSources = 64;
// Maximum number of pieces per packing launch.
constexpr uint32_t kMostPieces = 512;
constexpr uint32_t kMostChunkBytes = 64 << 10;
// Number of threads per block. Kernels are compiled for at most this many.
constexpr uint32_t kThreads = 256;

// Reduction operations, in the order of the rows in collectives/kernels.h.
enum class Op : uint32_t { sum = 0, min = 1, max = 2, product = 3 };

// Device form of Scale (collectives/comm.h), with a precomputed quotient for floats. collectives/reduce.cc defines the scaling of each
// type.
struct Scaling {
  double factor = 1.0, divisor = 1.0;
  // Quotient factor / divisor, computed in double. The kernel converts it to the accumulation type.
  double multiplier = 1.0;
  // Nonzero if factor and divisor are both 1. Integers and bools then stay unchanged.
  uint32_t identity = 1;
  uint32_t unused = 0;
};
static_assert(sizeof(Scaling) == 32 && alignof(Scaling) == 8);

// Parameters of reduce_<dtype>: combine elements [begin, end) of all sources in the canonical order, scale, and store
// to every destination. A destination can be one of the sources, but must not partly overlap a source.
struct ReduceParameters {
  uint64_t sources[kMostSources];
  uint64_t destinations[kMostSources];
  uint64_t begin, end;
  Scaling scaling;
  Op op;
  uint32_t source_count, destination_count, unused;
};
static_assert(sizeof(ReduceParameters) == 1088 && offsetof(ReduceParameters, begin) == 1024 &&
              offsetof(ReduceParameters, scaling) == 1040 && offsetof(ReduceParameters, op) == 1072);

// Parameters of scale_<dtype>: scale `count` elements. Source and destination can be the same memory.
struct ScaleParameters {
  uint64_t source, destination, count;
  Scaling scaling;
};
static_assert(sizeof(ScaleParameters) == 56 && offsetof(ScaleParameters, scaling) == 24);

// Tensor, or part of a tensor, to pack or unpack.
struct Piece {
  // Source address, or 0 for zeros.
  uint64_t source;
  uint64_t destination;
  // Number of elements, or of bytes for pack_bytes.
  uint64_t elements;
  // Total number of chunks in all preceding pieces.
  uint64_t first_chunk;
};
static_assert(sizeof(Piece) == 32);

// Parameters of pack_bytes, pack_<dtype> (scaled) and pack_<from>_to_<to> (cast, scaled, rounded once), which copy each piece from its
// source to its destination. The fusion buffer is the destination of packing and the source of unpacking. Pieces are split into chunks of
// `chunk` elements; the last can be shorter. A block processes one chunk after another. If the types are equal, a source can be its own
// destination.
struct PackParameters {
  Piece pieces[kMostPieces];
  Scaling scaling;
  uint64_t chunks;
  uint32_t chunk;
  uint32_t piece_count;
};
static_assert(sizeof(PackParameters) == 16432 && offsetof(PackParameters, scaling) == 16384 && offsetof(PackParameters, chunks) == 16416);
// From PTX 8.1 on, a kernel can take up to 32,764 bytes of parameters.
static_assert(sizeof(PackParameters) <= 32764);

}  // namespace hvd::kernels
