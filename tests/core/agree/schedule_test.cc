// A schedule made from a period.
#include "agree/schedule.h"

#include <doctest/doctest.h>

#include "periods.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("a schedule is the period, fused") {
  std::vector<Ready> period{ready_of("a", 1), ready_of("b", 1), ready_of("c", 2), ready_of("d", 1)};
  const Schedule s = make_schedule(9, period, {100, false});
  CHECK(s.id == 9);
  REQUIRE(s.buckets.size() == 2);
  CHECK(s.buckets[0].parts[0].names == std::vector<std::string>{"a", "b", "d"});
  CHECK(s.buckets[0].entries == std::vector<uint32_t>{0, 1, 3});
  CHECK(s.buckets[1].entries == std::vector<uint32_t>{2});
}

TEST_CASE("a group is one bucket, whatever it takes to carry it out, and no schedule begins within one") {
  auto member = [](const std::string& name, uint64_t unit, DType dtype, Kind kind = Kind::allreduce) {
    Ready r = ready_of(name, 1);
    r.unit = unit;
    r.group_size = 2;
    r.response.dtype = dtype;
    r.response.kind = kind;
    return r;
  };
  const DType f = DType::float32, d = DType::float64;
  auto plan = [](const std::vector<Ready>& period, FuseOptions options = {}) {
    std::string text;
    for (const auto& bucket : make_schedule(1, period, options).buckets) {
      text += '[';
      for (const auto& part : bucket.parts) {
        for (const auto& name : part.names) text += name;
        text += ' ';
      }
      text.back() = ']';
    }
    return text;
  };
  CHECK(plan({member("a", 1, f), member("b", 1, d), ready_of("x", 1), member("c", 2, f), member("e", 2, f)}) == "[a b][xce]");
  CHECK(plan({ready_of("x", 1), member("a", 1, f), member("b", 1, d), member("c", 1, f)}) == "[x][ac b]");
  CHECK(plan({ready_of("x", 1), member("a", 1, f), member("b", 1, f)}, {40, false}) == "[x][ab]");  // none of it fits beside x
  CHECK(plan({member("a", 1, f), member("b", 1, f)}, {0, false}) == "[ab]");
  CHECK(plan({member("a", 1, f), member("b", 1, f), member("c", 2, f)}, {1000, true}) == "[ab][c]");
  CHECK(plan({member("a", 1, f, Kind::allgather), member("b", 1, f, Kind::allgather)}) == "[ab]");
  CHECK(plan({member("a", 1, f, Kind::reducescatter), member("b", 1, d, Kind::reducescatter)}) == "[a b]");
  const Schedule s = make_schedule(1, {ready_of("x", 1), member("a", 1, f), member("b", 1, d), member("c", 1, f)}, {});
  CHECK(s.buckets[1].entries == std::vector<uint32_t>{1, 3, 2});

  ScheduleDetector detector(16);
  for (uint64_t fence = 1, unit = 10; fence < 8; fence += 2, ++unit) {
    Ready a = member("a", unit, f), b = member("b", unit, f);
    a.fence = fence << kWeakFenceBits;
    b.fence = (fence + 1) << kWeakFenceBits;
    detector.feed(a, identity_of(a));
    detector.feed(b, identity_of(b));
    CHECK(detector.period().size() % 2 == 0);
  }
  CHECK(detector.period().size() == 2);
  Ready longer = member("a", 99, f);
  const uint64_t before = identity_of(longer);
  longer.group_size = 3;
  CHECK(identity_of(longer) != before);
}
