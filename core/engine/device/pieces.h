// Plan for splitting tensors on the host-staged path. Pure.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace hvd {

struct Piece {
  size_t tensor = 0;  // index of the tensor
  size_t number = 0;  // index of the piece within its tensor
  size_t first = 0, bytes = 0;  // byte range in the tensor
  size_t at = 0;  // byte offset in the memory of its load
};

// Pieces that are copied together.
struct Load {
  std::vector<Piece> pieces;
  size_t bytes = 0;
};

// Split tensors of these sizes, in order, into loads of at most `most` bytes. Each tensor is split independently of its
// position: what it is fused with differs between steps, but its pieces are operations and must repeat. An empty tensor
// is one piece too, because it must be negotiated. `most`: a multiple of 64, the alignment of pieces.
std::vector<Load> cut(std::span<const size_t> tensors, size_t most);

}  // namespace hvd
