#include "engine/device/part_plan.h"

#include <algorithm>

namespace hvd {

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

}  // namespace hvd
