#include "engine/device/pieces.h"

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

}  // namespace hvd
