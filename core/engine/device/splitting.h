// How tensors on devices are split and packed: pieces for host memory, windows for buffers that ranks share, parts for
// the members of a host, and small tensors in one NCCL operation. Pure.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/launch.h"

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

// Plan for moving tensors through fixed-size buffers that all ranks of a set can access, and for sharing the work.
// Pure, and equal on all ranks.

// The parts of the tensors that are in a buffer at one time.
struct Window {
  // Elements [first, first + count) of a tensor, at byte offset `at` in the buffer.
  struct Part {
    size_t tensor, first, count, at;
  };
  std::vector<Part> parts;
  size_t bytes = 0;  // bytes up to the end of the last part
};

// Split concatenated tensors, given by their numbers of elements, into windows of at most `bytes`. Each part begins at
// a multiple of 256 bytes, which is fast for kernels; `bytes` must be such a multiple. Empty tensors are skipped.
std::vector<Window> windows_of(std::span<const size_t> elements, size_t element_bytes, size_t bytes);

// How ranks share the work of a reduction. On a single device one rank does all of a window, in turns, because they
// would run one after another anyway. On several devices each rank does a slice, even if some share a device.
enum class Sharing : uint8_t { by_turns, by_slices };
using Uuid = std::array<uint8_t, 16>;
Sharing sharing_of(std::span<const Uuid> devices);

// Return the slice of a window's elements that `rank` of `size` reduces. `window` counts from the set's first
// operation.
kernels::Slice reduced_by(Sharing sharing, int rank, int size, uint64_t window, size_t elements, size_t element_bytes);

// Plan for splitting concatenated tensors so that each member of a host gets a part of its host's sum. Pure.

// A range of the tensors, split into one equal part per member. In elements.
struct PartPlan {
  size_t first = 0;  // first element of the range
  size_t part = 0;   // elements of each member's part
};

// Return consecutive ranges of `members` parts of at most `most` bytes that cover `total` elements; the last may extend
// beyond. Parts begin at multiples of 256 bytes, which is fast for kernels. Empty if there are no elements.
std::vector<PartPlan> plan_parts(size_t total, size_t members, size_t element, size_t most);

// Plan of which tensors of a response are packed into one buffer for NCCL, and which are reduced in place. Pure, and
// equal on all ranks.
//
// Packing costs two launches and two more passes over the data; each tensor in an NCCL group costs time as well. So
// many small tensors are packed, few or large ones are not. The limits are estimates, not measured.
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
