// Do the ranks agree about one operation? Pure.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "agree/request.h"

namespace hvd {

// What one rank announced. `rank` is global.
struct Announced {
  int rank;
  Request request;
};

// ok, or Code::mismatch with a message that names the tensor, both ranks and both values. `labels`: by global rank.
Status validate(const std::vector<Announced>& announced, const std::vector<std::string>& labels);

// Can this request be made at all? Checked on the submitting rank before anything is sent: Code::invalid_argument naming the value
// and what is accepted. `members`: global ranks of the set; `set_rank`: mine.
Status check_arguments(const Request& request, const std::vector<int>& members);

}  // namespace hvd
