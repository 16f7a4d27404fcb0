// Checks that all ranks request the same operation. These functions do no I/O and keep no state.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "agree/request.h"

namespace hvd {

struct RankRequest {
  int rank;
  Request request;
};

// Return ok, or Code::mismatch with a message that names the tensor, both ranks and both values. `labels[r]` is the
// label of global rank r in messages.
Status validate(const std::vector<RankRequest>& requested, const std::vector<std::string>& labels);

// Check on the submitting rank that the request is valid before sending it. Return Code::invalid_argument with a
// message that names the value and the accepted values. `members` lists the global ranks of the set.
Status check_arguments(const Request& request, const std::vector<int>& members);

}  // namespace hvd
