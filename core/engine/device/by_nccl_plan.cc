#include "engine/device/by_nccl_plan.h"

namespace hvd {

constexpr size_t kSmall = size_t{256} << 10;  // maximum bytes of a packed tensor
constexpr size_t kFew = 4;                    // with this few tensors packing does not pay
constexpr size_t kMost = size_t{64} << 20;    // maximum bytes of the buffer

Packing plan_packing(std::span<const size_t> bytes, bool possible) {
  Packing p;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!possible || bytes[i] > kSmall || p.bytes + bytes[i] > kMost) {
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
