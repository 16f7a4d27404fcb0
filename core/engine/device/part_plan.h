// Plan for splitting concatenated tensors so that each member of a host gets a part of its host's sum. Pure.
#pragma once
#include <cstddef>
#include <vector>

namespace hvd {

// A range of the tensors, split into one equal part per member. In elements.
struct PartPlan {
  size_t first = 0;  // first element of the range
  size_t part = 0;   // elements of each member's part
};

// Return consecutive ranges of `members` parts of at most `most` bytes that cover `total` elements; the last may extend
// beyond. Parts begin at multiples of 256 bytes, which is fast for kernels. Empty if there are no elements.
std::vector<PartPlan> plan_parts(size_t total, size_t members, size_t element, size_t most);

}  // namespace hvd
