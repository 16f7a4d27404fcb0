// How tensors travel through buffers of a fixed size that all ranks of a set can see, and which rank computes what of them: pure, and the
// same on all ranks.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/launch.h"

namespace hvd {

// What of the tensors lies in a buffer at one time.
struct Window {
  // Elements [first, first + count) of a tensor, `at` bytes behind the buffer's beginning.
  struct Part {
    size_t tensor, first, count, at;
  };
  std::vector<Part> parts;
  size_t bytes = 0;  // up to the last part's end
};

// Tensors of so many elements end to end, cut into windows. Each begins at a multiple of 256 bytes, which kernels like; `bytes`, of a
// window, is a multiple of that. Empty tensors are nowhere.
std::vector<Window> windows_of(std::span<const size_t> elements, size_t element_bytes, size_t bytes);

// How ranks share the work of a reduction. On one device one of them does all of it, another one with each window: they would take turns
// anyhow. On several each does a slice, also where some of them share one.
enum class Sharing : uint8_t { by_turns, by_slices };
using Uuid = std::array<uint8_t, 16>;
Sharing sharing_of(std::span<const Uuid> devices);

// What rank `rank` of `size` reduces of the elements of window number `window` of a set, counted from the set's first operation on.
kernels::Slice reduced_by(Sharing sharing, int rank, int size, uint64_t window, size_t elements, size_t element_bytes);

}  // namespace hvd
