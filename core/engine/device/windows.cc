#include "engine/device/windows.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr size_t kAlignment = 256;

size_t window_aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::vector<Window> windows_of(std::span<const size_t> elements, size_t element_bytes, size_t bytes) {
  std::vector<Window> windows;
  size_t at = bytes;  // offset in the last window
  for (size_t tensor = 0; tensor < elements.size(); ++tensor) {
    for (size_t first = 0; first < elements[tensor];) {
      if (at == bytes) windows.emplace_back(), at = 0;
      const size_t count = std::min(elements[tensor] - first, (bytes - at) / element_bytes);
      Window& window = windows.back();
      window.parts.push_back({tensor, first, count, at});
      window.bytes = at + count * element_bytes;
      at = window_aligned(window.bytes);
      first += count;
    }
  }
  return windows;
}

Sharing sharing_of(std::span<const Uuid> devices) {
  const bool one = std::all_of(devices.begin(), devices.end(), [&](const Uuid& u) { return u == devices.front(); });
  return one ? Sharing::by_turns : Sharing::by_slices;
}

kernels::Slice reduced_by(Sharing sharing, int rank, int size, uint64_t window, size_t elements, size_t element_bytes) {
  const auto me = static_cast<uint64_t>(rank), ranks = static_cast<uint64_t>(size);
  if (sharing == Sharing::by_slices) return kernels::slice_of(elements, element_bytes, me, ranks);
  return {0, window % ranks == me ? elements : 0};
}

}  // namespace hvd
