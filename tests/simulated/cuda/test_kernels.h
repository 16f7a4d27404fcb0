// The one kernel of the simulator's own tests.
#pragma once

#include <cstdint>

struct FillParameters {
  uint64_t memory, bytes, value;
};
