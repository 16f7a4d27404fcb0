// Validation of rank 0's responses on the other ranks. Rank 0 decides the order of operations and their sizes, but it
// must not be able to corrupt another rank's memory: a response must match this rank's own request, and its sizes must
// be possible. Any violation is an error.
#pragma once
#include <vector>

#include "agree/request.h"

namespace hvd {

// Check a response. `requests` holds this rank's request for each name of the response, or null where it has none.
// `size` and `rank` are relative to the process set.
Status check_response(const Response& response, const std::vector<const Request*>& requests, int size, int rank);

// Check a response that adds or removes a process set. `world` is the number of ranks in the job.
Status check_set_change(const Response& response, int world);

}  // namespace hvd
