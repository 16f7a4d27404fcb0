// Which ready operations share one buffer. Pure.
#pragma once
#include <vector>

#include "agree/request.h"

namespace hvd {

struct FuseOptions {
  size_t threshold = 128u << 20;  // bytes of a fused operation; 0: nothing is fused
  bool groups_apart = false;      // members of a group are fused with one another only (HOROVOD_DISABLE_GROUP_FUSION)
};

// A ready operation on its way to a response. `unit`: operations with the same unit (members of a group) become ready together and
// stay together; `fence`: operations on different sides of a fence are never fused, because the program waited for the first before it
// submitted the second.
struct Ready {
  Response response;  // with exactly one name
  size_t bytes = 0;          // of what fusion limits: of an allgather, the result
  uint64_t unit = 0;
  uint64_t fence = 0;
  uint32_t group_size = 0;  // 0: of no group
  bool unnamed = false;
  bool grouped() const { return group_size > 0; }
};

// Allreduces of equal set, face, dtype, op, wire format and scale are joined as long as they stay below the threshold, also across others
// that lie between them; likewise reducescatters (bytes in) and allgathers (bytes out); everything else stays alone. A group of one such
// kind is one response whatever its size; one that needs several is fused with nothing else. The order of first members is kept.
// Deterministic.
std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options);
// The same, also telling which of `ready` (by index) went into each response.
std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options, std::vector<std::vector<size_t>>* members);

}  // namespace hvd
