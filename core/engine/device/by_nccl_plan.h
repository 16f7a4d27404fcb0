// Which tensors of one response are packed into a buffer, so that NCCL reduces them as one, and which it takes where they are: pure, and
// the same on all ranks.
//
// Packing costs two launches and reads and writes everything twice more; each tensor of a group costs NCCL some time of its own. So many
// small ones are packed, few or large ones are not. The limits are guesses: nothing of it is measured.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace hvd {

struct Packing {
  std::vector<size_t> packed, apart;  // tensors, by index
  std::vector<size_t> offsets;        // of those that are packed, in bytes
  size_t bytes = 0;                   // of the buffer
};

// bytes: of each tensor. possible: there are kernels that pack.
Packing plan_packing(std::span<const size_t> bytes, bool possible);

// Offsets in a buffer are multiples of what kernels and NCCL are fast at.
constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace hvd
