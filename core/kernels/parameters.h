// What a device kernel is told: one struct, by value. Host code fills it (launch.h), the kernels (kernels.cu) read it, and a device takes
// its bytes as they are, so layouts are fixed. Addresses are the device's, as integers: host code cannot follow them.
#pragma once
#include <cstddef>
#include <cstdint>

namespace hvd::kernels {

constexpr uint32_t kMostSources = 64;  // of a reduction; as many destinations
constexpr uint32_t kMostPieces = 512;  // of one launch that packs
constexpr uint32_t kMostChunkBytes = 64 << 10;
constexpr uint32_t kThreads = 256;  // of a block; kernels are compiled for no more

// In the order of the rows of collectives/kernels.h.
enum class Op : uint32_t { sum = 0, min = 1, max = 2, product = 3 };

// What collectives/comm.h calls a Scale, with the quotient that floats are multiplied by (collectives/reduce.cc says how each type is
// scaled).
struct Scaling {
  double factor = 1.0, divisor = 1.0;
  double multiplier = 1.0;  // factor / divisor, computed in double; narrowed to the accumulation type by the kernel
  uint32_t identity = 1;    // factor and divisor are both 1: integers and bools are left alone
  uint32_t unused = 0;
};
static_assert(sizeof(Scaling) == 32 && alignof(Scaling) == 8);

// reduce_<dtype>: the elements [begin, end) of all sources, combined in THE order and scaled, into every destination. A destination may be
// one of the sources; apart from that none overlaps another.
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

// scale_<dtype>: `count` elements. The two may be the same.
struct ScaleParameters {
  uint64_t source, destination, count;
  Scaling scaling;
};
static_assert(sizeof(ScaleParameters) == 56 && offsetof(ScaleParameters, scaling) == 24);

// One tensor, or a part of it, that is packed or unpacked.
struct Piece {
  uint64_t source;  // 0: zeros
  uint64_t destination;
  uint64_t elements;     // for pack_bytes: bytes
  uint64_t first_chunk;  // how many chunks the pieces before it have
};
static_assert(sizeof(Piece) == 32);

// pack_bytes, pack_<dtype> (scaled), pack_<from>_to_<to> (cast, then scaled, then rounded once): each piece from its source to its
// destination. Packing and unpacking differ only in which of the two is the fusion buffer. Pieces are cut into chunks of `chunk` elements,
// the last of a piece shorter; a block carries out one chunk after another. A source may be its own destination where the types are equal.
struct PackParameters {
  Piece pieces[kMostPieces];
  Scaling scaling;
  uint64_t chunks;  // of all pieces
  uint32_t chunk;
  uint32_t piece_count;
};
static_assert(sizeof(PackParameters) == 16432 && offsetof(PackParameters, scaling) == 16384 && offsetof(PackParameters, chunks) == 16416);
// From PTX 8.1 on a kernel takes 32,764 bytes of parameters.
static_assert(sizeof(PackParameters) <= 32764);

}  // namespace hvd::kernels
