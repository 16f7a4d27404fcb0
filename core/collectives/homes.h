// Tensors that live where the neighbours can reach them: in the arena of their rank (transport/arena.h). Before a large allreduce in
// shared memory each member says in the first lines of its staging area where its pieces are. Private to this floor.
#pragma once
#include <cstddef>
#include <cstdint>

#include "collectives/comm.h"
#include "collectives/reduce.h"

namespace hvd {

struct Homes {
  static constexpr size_t kMost = 63;
  uint64_t count = 0;  // pieces; 0: not all of them are in my arena, in place
  uint64_t offset[kMost];
};
static_assert(sizeof(Homes) == 512);

// Where this member's pieces are.
Homes homes_of(const NodeGroup& node, const Segments& data, size_t element);

// Allreduce of pieces that are in the arenas of all members; `homes`: by member, all with the same count. Each member reduces its slice
// from everybody's tensors, and stores the result into everybody's: no staging, no copy, each byte is read once and written once.
//   cost: 2 a + R m + W m, half of it from and to the caches of others
// To be called when all members have said where their pieces are, which also says that their tensors are ready; publishes one stage
// (number `stage`) and waits for everybody's, since others write into this member's tensors.
Status allreduce_in_place(NodeGroup& node, const Segments& data, const Homes* const* homes, uint64_t stage, DType d, ReduceOp op,
                          const Scale& s);

}  // namespace hvd
