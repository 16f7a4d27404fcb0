// Plans for splitting and packing tensors on devices. The three ways to split are pieces that are copied to host memory, windows that fit
// in the buffers that ranks share, and one part per rank of a host. Small tensors are packed into one NCCL operation. The functions only
// compute plans and move no data.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/launch.h"

namespace hvd {

struct Piece {
  // Index of the tensor that contains the piece.
  size_t tensor = 0;
  // Index of this piece among the pieces of its tensor.
  size_t number = 0;
  // Byte range of the piece in its tensor.
  size_t first = 0, bytes = 0;
  // Byte offset of the piece in the memory of its Load.
  size_t at = 0;
};

// Pieces that are copied together, and the size of their memory in bytes.
struct Load {
  std::vector<Piece> pieces;
  size_t bytes = 0;
};

// Split tensors of these sizes, in order, into pieces, grouped in batches of at most `most` bytes. `most` must be a multiple of 64, the
// alignment of pieces. The pieces of a tensor do not depend on the tensors fused with it, because they are operations that must repeat in
// every step. An empty tensor has one piece, because the ranks must negotiate it.
std::vector<Load> cut(std::span<const size_t> tensors, size_t most);

// Plan for reducing tensors through buffers of fixed size that all ranks of a set can access. All ranks compute the same plan.

// Window: parts of tensors that are in a buffer at the same time.
struct Window {
  // Elements [first, first + count) of a tensor, located at byte offset `at` of the buffer.
  struct Part {
    size_t tensor, first, count, at;
  };
  std::vector<Part> parts;
  // Byte offset at which the last part ends.
  size_t bytes = 0;
};

// Split concatenated tensors, given by their numbers of elements, into windows of at most `bytes` bytes. Each part of a
// tensor begins at a multiple of 256 bytes, an alignment that makes kernels fast; `bytes` must also be a multiple of
// 256. Empty tensors are skipped.
std::vector<Window> windows_of(std::span<const size_t> elements, size_t element_bytes, size_t bytes);

// How ranks share the work of a reduction. On a single device, kernels run one after another anyway, so ranks take turns and reduce a whole
// window each. On several devices, each rank reduces a slice, even if some ranks share a device.
enum class Sharing : uint8_t { by_turns, by_slices };
using Uuid = std::array<uint8_t, 16>;
Sharing sharing_of(std::span<const Uuid> devices);

// Return the range of elements that `rank` reduces in a window. `size` is the number of ranks. Windows are numbered from the set's first
// operation on.
kernels::Slice reduced_by(Sharing sharing, int rank, int size, uint64_t window, size_t elements, size_t element_bytes);

// Plan for an allreduce in which each rank of a host gets a part of the host's sum.

// Range of elements of the concatenated tensors. Each rank of the host gets an equal part of it.
struct PartPlan {
  // Index of the first element in the range.
  size_t first = 0;
  // Number of elements in each rank's part.
  size_t part = 0;
};

// Split `total` elements into consecutive ranges. Each range consists of `members` parts of at most `most` bytes each.
// The last range can extend beyond the end. Parts begin at multiples of 256 bytes, an alignment that makes kernels
// fast. If `total` is 0, the result is empty.
std::vector<PartPlan> plan_parts(size_t total, size_t members, size_t element, size_t most);

// Plan of which tensors of a response are packed into one buffer for NCCL, and which are reduced in place. All ranks
// compute the same plan.
//
// Packing costs two launches and two more passes over the data, but each tensor in an NCCL group has a cost, too. Only small tensors are
// packed, and only if there are many. The limits are estimates, not measurements.
struct Packing {
  // Indices of the tensors that are packed, and of those that are not.
  std::vector<size_t> packed, apart;
  // Byte offsets of the packed tensors in the buffer.
  std::vector<size_t> offsets;
  // Size in bytes of the buffer for packed tensors.
  size_t bytes = 0;
};

// Choose which tensors to pack. `bytes` holds the size of each tensor. `possible` is true if the packing kernels are
// available.
Packing plan_packing(std::span<const size_t> bytes, bool possible);

// Round a buffer offset up to an alignment that is fast for kernels and NCCL.
constexpr size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace hvd
