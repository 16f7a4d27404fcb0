// Detection of a period in a history.
#include "agree/schedule_detector.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "periods.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("which histories have a period") {
  struct Case {
    std::vector<std::string> steps;
    const char* period;
  };
  const Case cases[] = {
      {{"x", "abc", "abc"}, "abc"},
      {{"x", "abc", "bca"}, "bca"},  // ranks race
      {{"abc", "abc"}, ""},  // the start of the first is unknown
      {{"x", "abc", "abd"}, ""},
      {{"x", "ab", "ab", "c"}, ""},
      {{"x", "AB", "AB"}, "AB"},
      {{"x", "AB", "BA"}, ""},  // unnamed ones cannot be reordered
      {{"x", "aA", "Aa"}, "Aa"},
      {{"x", "abab"}, ""},  // no fence in the middle
      {{"x", "ab", "c", "ab", "c"}, "abc"},
      {{"x", "a", "a"}, "a"},
      {{"x", "aab", "aab"}, "aab"},
      {{"x"}, ""},
      {{}, ""},
  };
  for (const Case& c : cases) {
    ScheduleDetector d(100);
    std::string all;
    for (auto& s : c.steps) all += s + " ";
    CAPTURE(all);
    CHECK(period_after(d, c.steps) == c.period);
  }
}

TEST_CASE("after a schedule that did not last only longer periods are proposed, and none that merely repeats it") {
  ScheduleDetector d(30);
  CHECK(period_after(d, {"x", "a", "a"}) == "a");
  d.note_revoked(3, 1);
  // Each operation is awaited, as in a program of blocking calls: b a a a b a a a.
  CHECK(period_after(d, {"a", "a", "a", "a", "a", "a"}) == "");
  CHECK(period_after(d, {"b", "a", "a", "a", "b", "a", "a"}) == "abaa");
  d.note_revoked(1000, 4);  // this schedule lasted
  CHECK(period_after(d, {"x", "a", "a"}) == "a");
  d.note_revoked(3, 1);
  size_t steps = 0;  // the program may have changed, so short periods get another chance
  while (period_after(d, {"a"}).empty() && steps < 1000) ++steps;
  CHECK(steps > 10);
  CHECK(steps < 200);
}

TEST_CASE("a barrier after every so many equal operations: the period with the barrier in it is found") {
  ScheduleDetector d(100);
  const std::vector<std::string> round{"b", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a",
                                       "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"};
  for (int i = 0; i < 2; ++i) {
    // three negotiated, the rest by the schedule, until the barrier ends it
    CHECK(period_after(d, {"b", "a", "a", "a"}) == "a");
    d.note_revoked(17, 1);
  }
  std::string found;
  int rounds = 0;
  for (; found.empty() && rounds < 4; ++rounds) {
    for (const std::string& step : round) {
      if (found.empty()) found = period_after(d, {step});
    }
  }
  CHECK(found.size() == round.size());
  CHECK(std::count(found.begin(), found.end(), 'b') == 1);
  // Without such a period the search ends, and restarts after increasingly many schedules.
  d.note_revoked(17, round.size());
  int searches[2] = {0, 0};
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 100; ++i) {
      d.note_revoked(17, 1);
      const bool searching = period_after(d, {std::string(1, static_cast<char>('c' + i % 20)), "a", "a", "a"}).empty();
      searches[half] += searching;
      for (int k = 0; searching && k < 200 && period_after(d, {"a"}).empty(); ++k) {
      }
    }
  }
  CHECK(searches[0] > searches[1]);
  CHECK(searches[0] < 10);
  CHECK(searches[1] > 0);
}

TEST_CASE("a period begins only where the program had waited for what was before, and at a group's first member") {
  // The program waits after each "a", but not after "b": so its steps are "ba".
  ScheduleDetector d(16);
  const auto found = [&d](const char* name, uint64_t fence, uint64_t unit = 0) {
    Ready r = ready_of(name, fence);
    r.unit = unit;
    r.group_size = unit ? 2 : 0;
    d.feed(r, identity_of(r));
    std::string names;
    for (const Ready& one : d.period()) names += one.response.names[0];
    return names;
  };
  CHECK(found("a", 1) == "");
  for (uint64_t step = 2; step < 6; ++step) {
    CHECK(found("b", step) == "");
    CHECK(found("a", step) == (step > 2 ? "ba" : ""));
  }
  // Groups of two, with waits between their members and before each group.
  d.reset();
  CHECK(found("x", 10) == "");
  for (uint64_t step = 0; step < 3; ++step) {
    CHECK(found("a", 11 + 2 * step, 100 + step) == "");
    CHECK(found("b", 12 + 2 * step, 100 + step) == (step > 0 ? "ab" : ""));
  }
}
