// Parameters of the device kernels, with one struct for each, passed by value. Host code fills them (launch.h) and the
// kernels (kernels.cu) read them. A device gets their bytes unchanged, so the layouts are fixed. Addresses are device
// addresses stored as integers, which host code cannot dereference.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hvd::kernels {

constexpr uint32_t kMostSources = 64;  // Maximum number of sources of a reduction, and also of destinations.
constexpr uint32_t kMostPieces = 512;  // Maximum number of pieces per packing launch.
constexpr uint32_t kMostChunkBytes = 64 << 10;
constexpr uint32_t kThreads = 256;  // threads per block; kernels are compiled for at most this many

// The order is that of the rows in collectives/kernels.h.
enum class Op : uint32_t { sum = 0, min = 1, max = 2, product = 3 };

// Device form of Scale (collectives/comm.h). It also has the quotient by which floats are multiplied;
// collectives/reduce.cc defines the scaling of each type.
struct Scaling {
  double factor = 1.0, divisor = 1.0;
  double multiplier = 1.0;  // Equal to factor / divisor, computed in double. The kernel narrows it to the accumulation type.
  uint32_t identity = 1;    // Not 0 if factor and divisor are both 1, so that integers and bools stay unchanged.
  uint32_t unused = 0;
};
static_assert(sizeof(Scaling) == 32 && alignof(Scaling) == 8);

// Parameters of reduce_<dtype>: combine elements [begin, end) of all sources in the canonical order, scale, and store
// to every destination. A destination may be one of the sources but must not overlap any in another way.
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

// Parameters of scale_<dtype>: scale `count` elements. Source and destination may be the same memory.
struct ScaleParameters {
  uint64_t source, destination, count;
  Scaling scaling;
};
static_assert(sizeof(ScaleParameters) == 56 && offsetof(ScaleParameters, scaling) == 24);

// One tensor, or part of it, to pack or unpack.
struct Piece {
  uint64_t source;  // address of the source; 0 stands for zeros
  uint64_t destination;
  uint64_t elements;     // Number of elements; for pack_bytes, the number of bytes.
  uint64_t first_chunk;  // Number of chunks of all pieces before this one.
};
static_assert(sizeof(Piece) == 32);

// Parameters of pack_bytes, pack_<dtype> (scaled) and pack_<from>_to_<to> (cast, scaled, rounded once): copy each piece
// from its source to its destination. Packing and unpacking differ only in which side is the fusion buffer. Pieces are
// split into chunks of `chunk` elements, of which the last may be shorter, and a block processes one chunk after
// another. If the types are equal, a source may be its own destination.
struct PackParameters {
  Piece pieces[kMostPieces];
  Scaling scaling;
  uint64_t chunks;  // total number of chunks of all pieces
  uint32_t chunk;
  uint32_t piece_count;
};
static_assert(sizeof(PackParameters) == 16432 && offsetof(PackParameters, scaling) == 16384 && offsetof(PackParameters, chunks) == 16416);
// From PTX 8.1 on a kernel takes up to 32,764 bytes of parameters.
static_assert(sizeof(PackParameters) <= 32764);

}  // namespace hvd::kernels
