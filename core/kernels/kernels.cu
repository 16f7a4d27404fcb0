// All kernels of the engine. `make kernels` compiles them to kernels.ptx, which is committed (run it after any change
// of a file included here); tests/simulated/kernels compiles them for the host. Each kernel has one parameter
// (parameters.h); grids and blocks have one dimension, blocks at most kThreads threads, and no thread waits for
// another.
//
// Bits equal the CPU's (collectives/reduce.cc) for all numbers: same order of additions, no contraction (-fmad=false),
// no flushing of denormals, and the formulas of base/half.h. The bits of a NaN may differ.
#include "kernels/parameters.h"
#include "kernels/reduction.h"
#include "kernels/table.h"
#include "kernels/transform.h"

namespace hvd::kernels {

template <class E>
HVD_KERNEL_INLINE void scale(const ScaleParameters& p, Place place) {
  transform<E, E>(p.source, p.destination, p.count, p.scaling, Share{place.first(), place.stride()});
}

// Call work(piece, first element, elements, share) for each chunk of this block.
template <class Work>
HVD_KERNEL_INLINE void each_chunk(const PackParameters& p, Place place, Work work) {
  HVD_KERNEL_ROLL
  for (uint64_t chunk = place.block; chunk < p.chunks; chunk += place.blocks) {
    // Last piece that starts at or before this chunk; empty pieces come before it.
    uint32_t low = 0, high = p.piece_count;
    HVD_KERNEL_ROLL
    while (high - low > 1) {
      const uint32_t middle = (low + high) / 2;
      if (p.pieces[middle].first_chunk <= chunk) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const Piece& piece = p.pieces[low];
    const uint64_t first = (chunk - piece.first_chunk) * p.chunk, left = piece.elements - first;
    work(piece, first, left < p.chunk ? left : p.chunk, Share{place.thread, place.threads});
  }
}

HVD_KERNEL_INLINE void pack_bytes(const PackParameters& p, Place place) {
  each_chunk(p, place, [](const Piece& piece, uint64_t first, uint64_t bytes, Share share) {
    copy(piece.source == 0 ? 0 : piece.source + first, piece.destination + first, bytes, share);
  });
}

template <class In, class Out>
HVD_KERNEL_INLINE void pack(const PackParameters& p, Place place) {
  each_chunk(p, place, [&p](const Piece& piece, uint64_t first, uint64_t elements, Share share) {
    const uint64_t destination = piece.destination + first * kBytes<Out>;
    if (piece.source == 0) {
      copy(0, destination, elements * kBytes<Out>, share);
    } else {
      transform<In, Out>(piece.source + first * kBytes<In>, destination, elements, p.scaling, share);
    }
  });
}

}  // namespace hvd::kernels

#define HVD_OF_A_TYPE(name, text, bytes, floating)                                                             \
  HVD_KERNEL(reduce_##name, ReduceParameters, bytes, bytes, hvd::kernels::reduce<hvd::kernels::element::name>) \
  HVD_KERNEL(scale_##name, ScaleParameters, bytes, bytes, hvd::kernels::scale<hvd::kernels::element::name>)    \
  HVD_KERNEL(pack_##name, PackParameters, bytes, bytes, hvd::kernels::pack<hvd::kernels::element::name, hvd::kernels::element::name>)
#define HVD_CAST(from, to)                                                                             \
  HVD_KERNEL(pack_##from##_to_##to, PackParameters, hvd::kernels::kBytes<hvd::kernels::element::from>, \
             hvd::kernels::kBytes<hvd::kernels::element::to>, hvd::kernels::pack<hvd::kernels::element::from, hvd::kernels::element::to>)

HVD_DTYPES(HVD_OF_A_TYPE)
HVD_KERNEL_CASTS(HVD_CAST)
HVD_KERNEL(pack_bytes, PackParameters, 1, 1, hvd::kernels::pack_bytes)
