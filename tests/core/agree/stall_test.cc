#include "agree/stall.h"

#include <doctest/doctest.h>

#include "requests.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("the stall check tells who is missing, and ends the job when asked to") {
  Negotiator n(4, labels(4));
  n.add_request(1, request("late"), 10);
  n.add_request(3, request("late"), 11);
  CHECK(n.waiting(9).empty());
  const auto waiting = n.waiting(10);
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].ready == std::vector<int>{1, 3});
  CHECK(waiting[0].missing == std::vector<int>{0, 2});
  std::string text;
  int warnings = 0;
  const LogSink log = [&](LogLevel, const std::string& t) {
    text = t;
    ++warnings;
  };
  bool warned = false;
  auto check = [&](StallCheck& s, double now) { return s.check(n, now, log, &warned); };
  StallCheck stall(5, 20, labels(4));
  CHECK(check(stall, 14).ok());
  CHECK(warnings == 0);
  CHECK(!warned);
  CHECK(check(stall, 16).ok());
  CHECK(warned);
  CHECK(warnings == 1);
  for (const char* part : {"late", "rank 0", "rank 2"}) CHECK(contains(text, part));
  CHECK(check(stall, 18).ok());
  CHECK(warnings == 1);
  const Status end = check(stall, 31);
  CHECK(end.code() == Code::timeout);
  CHECK(contains(end.message(), "late"));
  StallCheck early(5, 20, labels(4)), sharp(5, 20, labels(4));
  CHECK(early.check(n, 29.9, nullptr, &warned).ok());
  CHECK(sharp.check(n, 30, nullptr, &warned).code() == Code::timeout);  // 20 s after it was requested
  StallCheck never(0, 0, labels(4));
  CHECK(check(never, 1e6).ok());
  CHECK(warnings == 1);
}
