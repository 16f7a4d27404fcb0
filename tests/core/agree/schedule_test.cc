// Schedules made from a period.
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
  // none of it fits into the bucket of x
  CHECK(plan({ready_of("x", 1), member("a", 1, f), member("b", 1, f)}, {40, false}) == "[x][ab]");
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

TEST_CASE("a schedule from another rank: each operation in one bucket, whose parts are of it") {
  // Two buckets: {a b} with one part, and {c} of another process set.
  auto make = [] {
    Schedule s;
    s.id = 3;
    for (const char* name : {"a", "b", "c"}) s.entries.push_back({name[0] == 'c' ? 2u : 0u, Kind::allreduce, name});
    for (std::vector<std::string> names : {std::vector<std::string>{"a", "b"}, std::vector<std::string>{"c"}}) {
      Response part;
      part.set = names[0] == "c" ? 2 : 0;
      part.shapes.assign(names.size(), {4});
      part.names = std::move(names);
      s.buckets.push_back({{part}, {}});
    }
    s.buckets[0].entries = {0, 1};
    s.buckets[1].entries = {2};
    return s;
  };
  auto accepted = [](const Schedule& s) {
    std::string bytes;
    encode(s, &bytes);
    Schedule read;
    return decode(bytes, &read) && read.id == s.id && read.buckets.size() == s.buckets.size();
  };
  const Schedule good = make();
  REQUIRE(accepted(good));

  Schedule s = good;  // nonexistent and repeated entries
  s.buckets[1].entries = {3};
  CHECK(!accepted(s));
  s = good;
  s.buckets.push_back(s.buckets[1]);
  CHECK(!accepted(s));
  s.buckets[2].entries = {3};
  CHECK(!accepted(s));
  s = good;
  s.entries.push_back({0, Kind::allreduce, "in no bucket"});
  CHECK(!accepted(s));

  s = good;  // parts: with an error, of no collective, without names, of several sets
  s.buckets[0].parts[0].error = Status(Code::invalid_argument, "shapes differ");
  CHECK(!accepted(s));
  s = good;
  s.buckets[1].parts[0].kind = s.entries[2].kind = Kind::join;
  CHECK(!accepted(s));
  s = good;
  s.buckets[0].parts.push_back(s.buckets[0].parts[0]);
  s.buckets[0].parts[1].names.clear();
  s.buckets[0].parts[1].shapes.clear();
  CHECK(!accepted(s));
  s = good;
  s.buckets[0].parts.push_back(s.buckets[0].parts[0]);
  for (size_t part : {0, 1}) {
    s.buckets[0].parts[part].names = {part == 0 ? "a" : "b"};
    s.buckets[0].parts[part].shapes = {{4}};
  }
  CHECK(accepted(s));
  s.buckets[0].parts[1].set = s.entries[1].set = 2;
  CHECK(!accepted(s));
}
