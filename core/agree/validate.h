// Check that the ranks agree about one operation. Pure.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "agree/request.h"

namespace hvd {

// The request of one rank. `rank` is global.
struct RankRequest {
  int rank;
  Request request;
};

// Return ok, or Code::mismatch with a message that names the tensor, both ranks and both values. `labels`: label of
// each global rank.
Status validate(const std::vector<RankRequest>& requested, const std::vector<std::string>& labels);

// Check on the submitting rank, before anything is sent, that the request is possible. Return Code::invalid_argument
// naming the value and what is accepted. `members`: global ranks of the set.
Status check_arguments(const Request& request, const std::vector<int>& members);

}  // namespace hvd
