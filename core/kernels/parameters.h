// Parameters of the device kernels: one struct each, passed by value. Host code fills them (launch.h) and the kernels
// (kernels.cu) read them; a device takes their bytes unchanged, so layouts are fixed. Addresses are device addresses as
// integers, which host code cannot dereference.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hvd::kernels {

constexpr uint32_t kMostSources = 64;  // Maximum sources of a reduction, and maximum destinations.
constexpr uint32_t kMostPieces = 512;  // Maximum pieces per packing launch.
constexpr uint32_t kMostChunkBytes = 64 << 10;
constexpr uint32_t kThreads = 256;  // threads per block; kernels are compiled for no more

// Same order as the rows of collectives/kernels.h.
enum class Op : uint32_t { sum = 0, min = 1, max = 2, product = 3 };

// Device form of Scale (collectives/comm.h), with the quotient that floats are multiplied by (collectives/reduce.cc
// defines the scaling of each type).
struct Scaling {
  double factor = 1.0, divisor = 1.0;
  double multiplier = 1.0;  // Factor / divisor, computed in double; narrowed to the accumulation type by the kernel.
  uint32_t identity = 1;    // Factor and divisor are both 1: integers and bools are unchanged.
  uint32_t unused = 0;
};
static_assert(sizeof(Scaling) == 32 && alignof(Scaling) == 8);

// reduce_<dtype>: combine elements [begin, end) of all sources in the canonical order, scale, and store to every
// destination. A destination may be one of the sources; otherwise none may overlap.
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

// scale_<dtype>: scale `count` elements. Source and destination may be equal.
struct ScaleParameters {
  uint64_t source, destination, count;
  Scaling scaling;
};
static_assert(sizeof(ScaleParameters) == 56 && offsetof(ScaleParameters, scaling) == 24);

// One tensor, or part of it, to pack or unpack.
struct Piece {
  uint64_t source;  // address; 0: zeros
  uint64_t destination;
  uint64_t elements;     // Number of elements; bytes for pack_bytes.
  uint64_t first_chunk;  // Number of chunks of the pieces before it.
};
static_assert(sizeof(Piece) == 32);

// pack_bytes, pack_<dtype> (scaled), pack_<from>_to_<to> (cast, scaled, rounded once): copy each piece from its source
// to its destination. Packing and unpacking differ only in which side is the fusion buffer. Pieces are split into
// chunks of `chunk` elements, the last one shorter; a block processes one chunk after another. If the types are equal,
// a source may be its own destination.
struct PackParameters {
  Piece pieces[kMostPieces];
  Scaling scaling;
  uint64_t chunks;  // number of chunks of all pieces
  uint32_t chunk;
  uint32_t piece_count;
};
static_assert(sizeof(PackParameters) == 16432 && offsetof(PackParameters, scaling) == 16384 && offsetof(PackParameters, chunks) == 16416);
// Since PTX 8.1 a kernel takes up to 32,764 bytes of parameters.
static_assert(sizeof(PackParameters) <= 32764);

}  // namespace hvd::kernels
