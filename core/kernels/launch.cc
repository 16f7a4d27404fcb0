#include "kernels/launch.h"

#include <algorithm>
#include <limits>

#include "kernels/table.h"

namespace hvd::kernels {
namespace {

constexpr uint64_t kVectorBytes = 16, kBlocksPerMultiprocessor = 4;
// Each rank's share of a reduction is a multiple of this many bytes, so that no two ranks write to the same cache line.
constexpr uint64_t kSliceBytes = 512;
// Packing splits tensors into chunks of multiples of this many bytes, so that all chunks of an aligned tensor are aligned to 16 bytes.
constexpr uint64_t kChunkStep = 4096;

#define HVD_OF_A_TYPE(cpp, text, bytes, floating) \
  {"reduce_" #cpp, sizeof(ReduceParameters)}, {"scale_" #cpp, sizeof(ScaleParameters)}, {"pack_" #cpp, sizeof(PackParameters)},
#define HVD_CAST(from, to) {"pack_" #from "_to_" #to, sizeof(PackParameters)},
constexpr Kernel kAll[] = {HVD_DTYPES(HVD_OF_A_TYPE) HVD_KERNEL_CASTS(HVD_CAST){"pack_bytes", sizeof(PackParameters)}};
#undef HVD_OF_A_TYPE
#undef HVD_CAST

constexpr size_t kOfEachType = 3, kFirstCast = kOfEachType * kDTypeCount;

struct Cast {
  DType from, to;
};
#define HVD_CAST(from, to) {DType::from, DType::to},
constexpr Cast kCasts[] = {HVD_KERNEL_CASTS(HVD_CAST)};
#undef HVD_CAST

size_t first_of(DType d) { return kOfEachType * static_cast<size_t>(d); }

uint64_t divided_up(uint64_t x, uint64_t by) { return x / by + (x % by != 0); }

}  // namespace

std::span<const Kernel> all() { return kAll; }

size_t reduce_of(DType d) { return first_of(d); }
size_t scale_of(DType d) { return first_of(d) + 1; }
size_t pack_of(DType d) { return first_of(d) + 2; }
size_t pack_bytes_of() { return std::size(kAll) - 1; }

std::optional<size_t> pack_of(DType from, DType to) {
  if (from == to) return pack_of(from);
  for (size_t i = 0; i < std::size(kCasts); ++i) {
    if (kCasts[i].from == from && kCasts[i].to == to) return kFirstCast + i;
  }
  return std::nullopt;
}

std::optional<Op> op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::average:
    case ReduceOp::sum: return Op::sum;
    case ReduceOp::min: return Op::min;
    case ReduceOp::max: return Op::max;
    case ReduceOp::product: return Op::product;
    default: return std::nullopt;
  }
}

Scaling scaling_of(double factor, int64_t divisor) {
  Scaling s;
  s.factor = factor;
  s.divisor = static_cast<double>(divisor);
  s.multiplier = s.factor / s.divisor;
  s.identity = factor == 1.0 && divisor == 1;
  return s;
}

// Return the launch geometry. Small work is spread over the whole device, one vector per thread. For larger work, each thread loops over
// several vectors.
Geometry geometry(uint64_t elements, size_t element_bytes, int multiprocessors) {
  const uint64_t most = kBlocksPerMultiprocessor * static_cast<uint64_t>(std::max(multiprocessors, 1));
  const uint64_t wanted = divided_up(elements * element_bytes, kVectorBytes * kThreads);
  return {static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most)), kThreads};
}

Slice slice_of(uint64_t elements, size_t element_bytes, uint64_t part, uint64_t parts) {
  const uint64_t step = kSliceBytes / element_bytes;
  const uint64_t each = divided_up(divided_up(elements, step), parts) * step;
  return {std::min(part * each, elements), std::min((part + 1) * each, elements)};
}

size_t fill(PackParameters* p, std::span<const Move> moves, size_t element_bytes, int multiprocessors) {
  const size_t taken = std::min<size_t>(moves.size(), kMostPieces);
  uint64_t bytes = 0;
  for (const Move& move : moves.first(taken)) bytes += move.elements * element_bytes;
  const uint64_t share = bytes / (kBlocksPerMultiprocessor * static_cast<uint64_t>(std::max(multiprocessors, 1)));
  const uint64_t chunk_bytes = std::clamp<uint64_t>(divided_up(share, kChunkStep) * kChunkStep, kChunkStep, kMostChunkBytes);
  p->chunk = static_cast<uint32_t>(chunk_bytes / element_bytes);
  p->chunks = 0;
  p->piece_count = static_cast<uint32_t>(taken);
  for (size_t i = 0; i < taken; ++i) {
    p->pieces[i] = {moves[i].source, moves[i].destination, moves[i].elements, p->chunks};
    p->chunks += divided_up(moves[i].elements, p->chunk);
  }
  return taken;
}

Geometry geometry(const PackParameters& p) {
  // Maximum number of blocks: the limit of the first dimension of a grid.
  constexpr uint64_t kMostBlocks = std::numeric_limits<int32_t>::max();
  return {static_cast<uint32_t>(std::clamp<uint64_t>(p.chunks, 1, kMostBlocks)), kThreads};
}

}  // namespace hvd::kernels
