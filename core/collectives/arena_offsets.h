// Allreduce of tensors in arenas, which the ranks of a host can access directly (transport/arena.h). Before a large
// allreduce in shared memory, each member writes the arena offsets of its pieces to the start of its staging area.
// Private to this layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// Arena offsets of one member's pieces. They are stored at the start of its staging area.
struct ArenaOffsets {
  static constexpr size_t kMax = 63;
  uint64_t count = 0;  // number of pieces, or 0 unless every piece is in this rank's arena and reduced in place
  uint64_t offset[kMax];
};
static_assert(sizeof(ArenaOffsets) == 512);

// Return the arena offsets of this member's pieces.
ArenaOffsets arena_offsets_of(const NodeGroup& node, const Segments& data, size_t element);

// Allreduce pieces that are in the arenas of all members. `offsets` holds the offsets of each member; all have the same
// count. Each member reduces its slice directly from all members' tensors and stores the result into all of them,
// without staging or copies, so each byte is read once and written once. The cost is 2 a + R m + W m, half of it from
// and to the caches of other members.
// Call this after all members have published their offsets, which also means that their tensors are ready. It publishes
// one stage and waits until every member has reached `stage`, because others write into this member's tensors.
Status allreduce_in_place(NodeGroup& node, const Segments& data, const ArenaOffsets* const* offsets, uint64_t stage, DType d, ReduceOp op,
                          const Scale& s);

}  // namespace hvd
