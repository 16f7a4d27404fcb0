// Rank 0's word counts for the order of operations and for what other ranks bring to them, not for this rank's own memory: what a
// response says about that has to be what this rank has asked for, and sizes have to be possible. A rank 0 that goes wrong is an error.
#pragma once
#include <vector>

#include "agree/request.h"

namespace hvd {

// `requests`: this rank's, in the order of the response's names; null where it has none. `size`, `rank`: of the process set, and in it.
Status check_response(const Response& response, const std::vector<const Request*>& requests, int size, int rank);

// The same for what says which process sets there are. `world`: number of ranks.
Status check_set_change(const Response& response, int world);

}  // namespace hvd
