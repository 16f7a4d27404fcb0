#include "agree/recent.h"

#include <doctest/doctest.h>

using namespace hvd;

namespace {

Request request_of_length(const std::string& name, int64_t elements) {
  Request q;
  q.name = name;
  q.shape = {elements};
  return q;
}

}  // namespace

TEST_CASE("what the next schedule can hold is remembered, each name as it was last; older ones are forgotten") {
  RecentRequests recent(3);
  for (int step = 0; step < 5; ++step) {
    for (const char* name : {"a", "b", "c"}) recent.remember(request_of_length(name, step));
  }
  for (const char* name : {"0/a", "0/b", "0/c"}) {
    REQUIRE(recent.find(name));
    CHECK(recent.find(name)->shape[0] == 4);
  }
  CHECK(!recent.find("0/d"));
  for (int i = 0; i < 9; ++i) recent.remember(request_of_length("d", i));
  CHECK(!recent.find("0/a"));
  CHECK(recent.find("0/d")->shape[0] == 8);
}
