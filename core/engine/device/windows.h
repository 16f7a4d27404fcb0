// Plan for moving tensors through fixed-size buffers that all ranks of a set can access, and for sharing the work.
// Pure, and equal on all ranks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/launch.h"

namespace hvd {

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

}  // namespace hvd
