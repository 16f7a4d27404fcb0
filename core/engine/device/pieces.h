// How tensors are cut for the way through the host. Pure.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace hvd {

struct Piece {
  size_t tensor = 0;  // by index
  size_t number = 0;  // of the tensor's pieces
  size_t first = 0, bytes = 0;  // where it lies in the tensor
  size_t at = 0;  // and in the memory of its load
};

// What is brought at once.
struct Load {
  std::vector<Piece> pieces;
  size_t bytes = 0;
};

// Tensors of so many bytes each, in order, in loads of `most` bytes at most. Each tensor is cut for itself, wherever it lies among the
// others: what was fused with it differs from step to step, and its pieces are operations, which have to be the same. An empty one is a
// piece too: it has to be agreed on. `most`: a multiple of 64, which is how pieces are aligned.
std::vector<Load> cut(std::span<const size_t> tensors, size_t most);

}  // namespace hvd
