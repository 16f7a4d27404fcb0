// Fusion of operations: stateless functions without I/O that decide which ready operations share a buffer.
#pragma once
#include <vector>

#include "agree/request.h"

namespace hvd {

// Limits of fusion. All ranks use the same values.
struct FuseOptions {
  // Maximum size of a fused operation in bytes; 0 disables fusion.
  size_t threshold = 128u << 20;
  // If true, operations of a group are fused only with each other (HOROVOD_DISABLE_GROUP_FUSION).
  bool groups_apart = false;
};

// Operation that is ready to become a response. Operations with the same `unit` belong to one group: they become ready
// together and are never separated. Operations with different `fence` values are never fused, because the program
// waited for one before it submitted the other.
struct Ready {
  // Response for this operation alone. It contains exactly one name.
  Response response;
  // Bytes counted towards the fusion threshold. For an allgather, this is the size of the result.
  size_t bytes = 0;
  uint64_t unit = 0;
  uint64_t fence = 0;
  // Number of operations in the group, or 0 if the operation is in no group.
  uint32_t group_size = 0;
  bool unnamed = false;
  bool grouped() const { return group_size > 0; }
};

// Fuse operations into responses. Allreduces with equal process set, frontend, dtype, op, wire format and scale are
// fused up to the threshold, even if other operations come between them. The same applies to reducescatters (counted by
// input bytes) and allgathers (counted by output bytes). Other kinds are never fused. A group whose operations agree in
// kind and in these fields becomes one response of any size. A group that needs several responses is fused with nothing
// else. Responses are ordered by their first operations. The result is deterministic.
std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options);
// Fuse operations like fuse(ready, options). For each response, `members` receives the indices in `ready` of its operations.
std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options, std::vector<std::vector<size_t>>* members);

}  // namespace hvd
