#include <algorithm>
#include <vector>

#include "collectives/arena_offsets.h"
#include "collectives/shm.h"

namespace hvd {
namespace {

// Size in bytes of a block, chosen so that the block's data of all ranks fit in the L1 cache.
constexpr size_t kArenaBlockBytes = 8 << 10;

}  // namespace

ArenaOffsets arena_offsets_of(const NodeGroup& node, const Segments& data, size_t element) {
  ArenaOffsets own;
  const std::byte* base = node.arena(node.me());
  if (!base || data.pieces.size() > ArenaOffsets::kMax) return own;
  for (size_t i = 0; i < data.pieces.size(); ++i) {
    const Segments::Piece& piece = data.pieces[i];
    // Memory outside the arena gives an offset beyond the arena's size: unsigned subtraction wraps around for memory below it, and for null
    // (on a rank that has called join()).
    const uint64_t offset = reinterpret_cast<uintptr_t>(piece.out) - reinterpret_cast<uintptr_t>(base);
    if (piece.in != piece.out || offset > node.arena_bytes() || piece.count * element > node.arena_bytes() - offset) return own;
    own.offset[i] = offset;
  }
  own.count = data.pieces.size();
  return own;
}

Status allreduce_in_place(NodeGroup& node, const Segments& data, const ArenaOffsets* const* offsets, uint64_t stage, DType d, ReduceOp op,
                          const Scale& s) {
  const size_t members = node.size(), me = node.me(), element = size_of(d), block = kArenaBlockBytes / element;
  const size_t slice = round_up(ceil_div(data.total, members), kLine / element);
  const size_t first = std::min(data.total, me * slice), last = std::min(data.total, first + slice);
  std::vector<const std::byte*> sources(members);
  std::vector<std::byte*> targets(members);
  PieceWalk(data).each(first, last - first, [&](const Segments::Piece& piece, size_t within, size_t, size_t n) {
    const size_t index = &piece - data.pieces.data();
    for (size_t m = 0; m < members; ++m) targets[m] = node.arena(static_cast<int>(m)) + offsets[m]->offset[index] + within * element;
    for (size_t done = 0; done < n; done += block) {
      const size_t some = std::min(block, n - done), at = done * element;
      for (size_t m = 0; m < members; ++m) sources[m] = targets[m] + at;
      reduce_many(d, op, targets[me] + at, sources, some, s);
      for (size_t m = 0; m < members; ++m) {
        if (m != me) copy_bytes(targets[m] + at, targets[me] + at, some * element, false);
      }
    }
  });
  node.count_unstaged(data.total * element);
  node.publish();
  return node.await_all(stage);
}

}  // namespace hvd
