// Validation of rank 0's responses on the other ranks. Rank 0 decides the order of operations and what other ranks
// contribute, but not this rank's memory: a response must match this rank's own request, and its sizes must be
// possible. A violation is an error.
#pragma once
#include <vector>

#include "agree/request.h"

namespace hvd {

// Check a response. `requests`: this rank's, in the order of the response's names; null where it has none. `size`,
// `rank`: those of the process set.
Status check_response(const Response& response, const std::vector<const Request*>& requests, int size, int rank);

// Check a response that adds or removes a process set. `world`: number of ranks.
Status check_set_change(const Response& response, int world);

}  // namespace hvd
