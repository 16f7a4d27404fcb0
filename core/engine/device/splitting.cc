#include "engine/device/splitting.h"

#include <algorithm>

namespace hvd {

std::vector<Load> cut(std::span<const size_t> tensors, size_t most) {
  constexpr size_t kAlignment = 64;
  std::vector<Load> loads;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    size_t first = 0;
    for (size_t number = 0; number == 0 || first < tensors[tensor]; ++number) {
      const size_t bytes = std::min(most, tensors[tensor] - first);
      if (loads.empty() || loads.back().bytes + bytes > most) loads.emplace_back();
      Load& load = loads.back();
      load.pieces.push_back({tensor, number, first, bytes, load.bytes});
      load.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
      first += bytes;
    }
  }
  return loads;
}

namespace {

constexpr size_t kAlignment = 256;

size_t window_aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::vector<Window> windows_of(std::span<const size_t> elements, size_t element_bytes, size_t bytes) {
  std::vector<Window> windows;
  // Byte offset of the next part in the window.
  size_t at = bytes;
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

std::vector<PartPlan> plan_parts(size_t total, size_t members, size_t element, size_t most) {
  constexpr size_t kAlignment = 256;
  const size_t grain = kAlignment / element, longest = std::max(grain, most / kAlignment * grain);
  std::vector<PartPlan> plan;
  for (size_t first = 0; first < total;) {
    const size_t even = (total - first + members - 1) / members;
    const size_t part = std::min((even + grain - 1) / grain * grain, longest);
    plan.push_back({first, part});
    first += part * members;
  }
  return plan;
}

// Maximum size in bytes of a tensor that is packed together with others.
constexpr size_t kSmall = size_t{256} << 10;
// Minimum number of small tensors for which packing pays off.
constexpr size_t kFew = 4;
// Maximum size in bytes of the buffer for packed tensors.
constexpr size_t kMax = size_t{64} << 20;

Packing plan_packing(std::span<const size_t> bytes, bool possible) {
  Packing p;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!possible || bytes[i] > kSmall || p.bytes + bytes[i] > kMax) {
      p.apart.push_back(i);
      continue;
    }
    p.packed.push_back(i);
    p.offsets.push_back(p.bytes);
    p.bytes += aligned(bytes[i]);
  }
  if (p.packed.size() >= kFew && p.bytes > 0) return p;
  Packing apart;
  for (size_t i = 0; i < bytes.size(); ++i) apart.apart.push_back(i);
  return apart;
}

}  // namespace hvd
