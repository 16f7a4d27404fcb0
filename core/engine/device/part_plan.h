// How tensors laid end to end are cut where each member of a host gets a part of its host's sum: pure.
#pragma once
#include <cstddef>
#include <vector>

namespace hvd {

// A stretch of the tensors, cut into as many equal parts as there are members. Elements.
struct PartPlan {
  size_t first = 0;  // where it begins
  size_t part = 0;   // of each member
};

// Stretches of `members` parts of at most `most` bytes, one behind the other, that cover `total` elements; the last one may reach beyond
// them. Parts begin at multiples of 256 bytes, as kernels like it. None for no elements.
std::vector<PartPlan> plan_parts(size_t total, size_t members, size_t element, size_t most);

}  // namespace hvd
