// Fusion decides which ready operations share one buffer. These functions do no I/O and keep no state.
#pragma once
#include <vector>

#include "agree/request.h"

namespace hvd {

// Limits of fusion, equal on all ranks.
struct FuseOptions {
  size_t threshold = 128u << 20;  // Maximum bytes of a fused operation; 0 disables fusion.
  bool groups_apart = false;      // Fuse group members only with members of the same group (HOROVOD_DISABLE_GROUP_FUSION).
};

// A ready operation that becomes a response. Operations with the same `unit` are members of one group: they become
// ready together and stay together. Operations with different `fence` values are never fused, because the program
// waited for the first before it submitted the second.
struct Ready {
  Response response;  // Response with exactly one name.
  size_t bytes = 0;          // Bytes counted towards the fusion threshold; for an allgather, the size of the result.
  uint64_t unit = 0;
  uint64_t fence = 0;
  uint32_t group_size = 0;  // 0 if the operation is in no group
  bool unnamed = false;
  bool grouped() const { return group_size > 0; }
};

// Fuse operations into responses. Allreduces with equal set, frontend, dtype, op, wire format and scale are fused up to
// the threshold, even if other operations are between them. Reducescatters (counted by input bytes) and allgathers
// (counted by output bytes) are fused in the same way. Other kinds are never fused. A group whose members share one
// kind and these fields is one response, whatever its size. A group that needs several responses is fused with nothing
// else. Responses are ordered by their first members. The result is deterministic.
std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options);
// Fuse as above, and return for each response the indices of the operations in it.
std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options, std::vector<std::vector<size_t>>* members);

}  // namespace hvd
