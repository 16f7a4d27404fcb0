// In-place allreduce of tensors in arenas: memory that all ranks of a host can access directly (transport/arena.h). To find each other's
// tensors, ranks exchange offsets through their staging areas. This header is private to the collectives layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// Offsets in a rank's arena of the pieces (tensors) to reduce. The rank stores them at the start of its staging area, for the other ranks.
struct ArenaOffsets {
  static constexpr size_t kMax = 63;
  // Number of pieces, or 0 if any piece is outside the arena or not reduced in place.
  uint64_t count = 0;
  uint64_t offset[kMax];
};
static_assert(sizeof(ArenaOffsets) == 512);

// Return the arena offsets of this rank's own pieces.
ArenaOffsets arena_offsets_of(const NodeGroup& node, const Segments& data, size_t element);

// Allreduce of pieces that are in the arenas of all ranks. `offsets` holds the offsets of each rank; all ranks have the same count. Each
// rank reduces its slice directly from all ranks' tensors and stores the result in all of them. There is no staging and no copy: each byte
// is read once and written once. Cost for n ranks (notation of shm.h): 2 a + R m + W m, half of it from and to the caches of other ranks.
// Call this after all ranks have published their offsets, because their tensors are ready only then. The function publishes one stage and
// waits until every rank has reached `stage`, because other ranks write into this rank's tensors.
Status allreduce_in_place(NodeGroup& node, const Segments& data, const ArenaOffsets* const* offsets, uint64_t stage, DType d, ReduceOp op,
                          const Scale& s);

}  // namespace hvd
