// Plan of which tensors of a response are packed into one buffer for NCCL, and which are reduced in place. Pure, and
// equal on all ranks.
//
// Packing costs two launches and two more passes over the data; each tensor in an NCCL group costs time as well. So
// many small tensors are packed, few or large ones are not. The limits are estimates, not measured.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

namespace hvd {

struct Packing {
  std::vector<size_t> packed, apart;  // indices of tensors
  std::vector<size_t> offsets;        // byte offsets of the packed tensors in the buffer
  size_t bytes = 0;                   // size of the buffer
};

// bytes: of each tensor. possible: whether the packing kernels are available.
Packing plan_packing(std::span<const size_t> bytes, bool possible);

// Round up a buffer offset to a multiple that is fast for kernels and NCCL.
constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace hvd
