// Validation of rank 0's responses on the other ranks. Rank 0 decides the order and the sizes of operations. A faulty
// rank 0 must not corrupt another rank's memory, so every response must match this rank's own request and have
// plausible sizes. Any violation is an error.
#pragma once
#include <vector>

#include "agree/request.h"

namespace hvd {

// Check a response. `requests` holds this rank's request for each name in the response, or null if this rank sent none.
// `size` and `rank` are the size of the process set and this rank's position in it.
Status check_response(const Response& response, const std::vector<const Request*>& requests, int size, int rank);

// Check a response that adds or removes a process set. `world` is the number of ranks in the job.
Status check_set_change(const Response& response, int world);

}  // namespace hvd
