// Plans for splitting and packing tensors on devices: pieces for host memory, windows for buffers that ranks share,
// parts for the members of a host, and small tensors in one NCCL operation. Computes only; moves no data.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/launch.h"

namespace hvd {

struct Piece {
  size_t tensor = 0;  // Index of the tensor.
  size_t number = 0;  // Index of the piece within its tensor.
  size_t first = 0, bytes = 0;  // Byte range in the tensor.
  size_t at = 0;  // Byte offset in the memory of the load.
};

// Pieces that are copied together as one load.
struct Load {
  std::vector<Piece> pieces;
  size_t bytes = 0;
};

// Split tensors of these sizes, in order, into loads of at most `most` bytes. `most` must be a multiple of 64, the
// alignment of pieces. Each tensor is split independently of its position: the tensors fused with it differ between
// steps, but its pieces are operations and must repeat. An empty tensor has one piece too, because it must be
// negotiated.
std::vector<Load> cut(std::span<const size_t> tensors, size_t most);

// Plan for moving tensors through buffers of fixed size that all ranks of a set can access, and for sharing the work.
// The plan is equal on all ranks.

// The parts of the tensors that are in a buffer at the same time.
struct Window {
  // Elements [first, first + count) of a tensor, located at byte offset `at` of the buffer.
  struct Part {
    size_t tensor, first, count, at;
  };
  std::vector<Part> parts;
  size_t bytes = 0;  // number of bytes up to the end of the last part
};

// Split concatenated tensors, given by their numbers of elements, into windows of at most `bytes` bytes. Each part
// begins at a multiple of 256 bytes, which is fast for kernels, and `bytes` must be such a multiple. Empty tensors are
// skipped.
std::vector<Window> windows_of(std::span<const size_t> elements, size_t element_bytes, size_t bytes);

// How ranks share the work of a reduction. On a single device, one rank reduces a whole window and the ranks take
// turns, because their kernels would run one after another in any case. On several devices each rank reduces a slice,
// even if some ranks share a device.
enum class Sharing : uint8_t { by_turns, by_slices };
using Uuid = std::array<uint8_t, 16>;
Sharing sharing_of(std::span<const Uuid> devices);

// Return the slice of a window's elements that `rank` of `size` ranks reduces. `window` is counted from the set's first
// operation.
kernels::Slice reduced_by(Sharing sharing, int rank, int size, uint64_t window, size_t elements, size_t element_bytes);

// Plan for splitting concatenated tensors so that each member of a host gets a part of its host's sum.

// A range of the concatenated tensors, in elements, which is split into one equal part per member.
struct PartPlan {
  size_t first = 0;  // First element of the range.
  size_t part = 0;   // Number of elements in each member's part.
};

// Return consecutive ranges that cover `total` elements. Each has `members` parts of at most `most` bytes, and the last
// range may extend beyond the end. Parts begin at multiples of 256 bytes, which is fast for kernels. Without elements
// there are no ranges.
std::vector<PartPlan> plan_parts(size_t total, size_t members, size_t element, size_t most);

// Plan of which tensors of a response are packed into one buffer for NCCL, and which are reduced in place. The plan is
// equal on all ranks.
//
// Packing costs two launches and two more passes over the data, and each tensor in an NCCL group costs time as well. So
// many small tensors are packed, but few or large tensors are not. The limits are estimates, not measured.
struct Packing {
  std::vector<size_t> packed, apart;  // Indices of the tensors that are packed, and of the others.
  std::vector<size_t> offsets;        // Byte offsets of the packed tensors in the buffer.
  size_t bytes = 0;                   // Size of the buffer in bytes.
};

// `bytes` holds the size of each tensor. `possible` is true if the packing kernels are available.
Packing plan_packing(std::span<const size_t> bytes, bool possible);

// Round up a buffer offset to a multiple that is fast for kernels and NCCL.
constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace hvd
