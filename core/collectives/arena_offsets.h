// Allreduce of tensors in arenas, where the neighbours can access them directly (transport/arena.h). Before a large
// allreduce in shared memory each member writes the arena offsets of its pieces to the head of its staging area.
// Private to this layer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

// Arena offsets of one member's pieces, stored at the head of its staging area.
struct ArenaOffsets {
  static constexpr size_t kMax = 63;
  uint64_t count = 0;  // number of pieces; 0: not all of them are in this rank's arena and reduced in place
  uint64_t offset[kMax];
};
static_assert(sizeof(ArenaOffsets) == 512);

// Return the arena offsets of this member's pieces.
ArenaOffsets arena_offsets_of(const NodeGroup& node, const Segments& data, size_t element);

// Allreduce pieces that are in the arenas of all members; `offsets`: by member, all with the same count. Each member
// reduces its slice directly from all members' tensors and stores the result into all of them, without staging or
// copies; each byte is read once and written once.
//   cost: 2 a + R m + W m, half of it from and to the caches of others
// Call it after all members have published their offsets, which also means that their tensors are ready. Publishes one
// stage (number `stage`) and waits for that of every member, because others write into this member's tensors.
Status allreduce_in_place(NodeGroup& node, const Segments& data, const ArenaOffsets* const* offsets, uint64_t stage, DType d, ReduceOp op,
                          const Scale& s);

}  // namespace hvd
