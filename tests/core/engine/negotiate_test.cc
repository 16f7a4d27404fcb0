// The coordinator's decisions, without a world: what is ready, in which order, fused how, and what is wrong.
#include "engine/negotiate.h"

#include <doctest/doctest.h>

#include "engine/coordinator.h"
#include "engine/stall.h"
#include "transport/segment.h"

using namespace hvd;

namespace {

std::vector<std::string> labels(int n) {
  std::vector<std::string> all;
  for (int r = 0; r < n; ++r) all.push_back("rank " + std::to_string(r) + " on host" + std::to_string(r));
  return all;
}

Request request(const std::string& name, Kind kind = Kind::allreduce, std::vector<int64_t> shape = {2}) {
  Request q;
  q.name = name;
  q.kind = kind;
  q.shape = std::move(shape);
  return q;
}

std::vector<std::string> names(const std::vector<Ready>& ready) {
  std::vector<std::string> all;
  for (const Ready& r : ready) all.push_back(r.response.names.front());
  return all;
}
using Names = std::vector<std::string>;

Request set_request(Kind kind, std::vector<int64_t> splits, const std::string& name) {
  Request q = request(name, kind, {});
  q.splits = std::move(splits);
  return q;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Ready ready_of(const std::string& name, size_t bytes, uint64_t unit = 0) {
  Ready r;
  r.response.names = {name};
  r.response.shapes = {{static_cast<int64_t>(bytes)}};
  r.bytes = bytes;
  r.unit = unit;
  r.grouped = unit != 0;
  return r;
}

std::vector<Names> fused(std::vector<Ready> ready, FuseOptions options) {
  std::vector<Names> all;
  for (const Response& r : fuse(std::move(ready), options)) all.push_back(r.names);
  return all;
}

}  // namespace

TEST_CASE("ready when the last rank has announced, in the order of completion") {
  Negotiator n(3, labels(3));
  for (int r : {2, 0}) {
    n.announce(r, request("a"), 0);
    n.announce(r, request("b"), 0);
  }
  CHECK(n.take_ready().empty());
  n.announce(1, request("b"), 0);
  CHECK(names(n.take_ready()) == Names{"b"});
  CHECK(n.has_pending());
  n.announce(1, request("a"), 0);
  CHECK(names(n.take_ready()) == Names{"a"});
  CHECK(!n.has_pending());
}

TEST_CASE("each disagreement names the tensor, both ranks and both values") {
  struct Wrong { const char* what; Request left, right; const char *one, *other; };
  auto with = [](auto change, Kind kind = Kind::allreduce) { Request q = request("t", kind); change(q); return q; };
  const Request t = request("t");
  const Wrong all[] = {
      {"operation", t, request("t", Kind::allgather), "allreduce", "allgather"},
      {"dtype", t, with([](Request& q) { q.dtype = DType::int64; }), "float32", "int64"},
      {"shape", t, request("t", Kind::allreduce, {2, 1}), "[2]", "[2, 1]"},
      {"reduction op", t, with([](Request& q) { q.op = ReduceOp::min; }), "Sum", "Min"},
      {"wire format", t, with([](Request& q) { q.wire = WireFormat::int8; }), "none", "int8"},
      {"prescale", t, with([](Request& q) { q.prescale = 0.5; }), "1", "0.5"},
      {"postscale", t, with([](Request& q) { q.postscale = 0.1; }), "1", "0.1"},
      {"group", t, with([](Request& q) { q.group = "g"; q.group_size = 3; }), "0", "3"},
      {"root", request("t", Kind::broadcast), with([](Request& q) { q.root = 1; }, Kind::broadcast), "0", "1"},
      {"shape", request("t", Kind::allgather, {2, 3}), request("t", Kind::allgather, {9, 4}), "[2, 3]", "[9, 4]"},
      {"shape", request("t", Kind::alltoall, {2, 3}), request("t", Kind::alltoall, {2}), "[2, 3]", "[2]"},
      {"ranks", set_request(Kind::add_set, {0, 1}, "t"), set_request(Kind::add_set, {0}, "t"), "[0, 1]", "[0]"},
      {"process set", set_request(Kind::remove_set, {1}, "t"), set_request(Kind::remove_set, {2}, "t"), "[1]", "[2]"},
  };
  for (const Wrong& w : all) {
    CAPTURE(w.what);
    const Status s = validate({{1, w.left}, {3, w.right}}, labels(4));
    CHECK(s.code() == Code::mismatch);
    for (const char* part : {"'t'", "rank 1", "rank 3", w.what, w.one, w.other}) CHECK_MESSAGE(contains(s.message(), part), s.message());
  }
  CHECK(validate({{0, request("t", Kind::allgather, {1, 3})}, {1, request("t", Kind::allgather, {7, 3})}}, labels(2)).ok());
}

TEST_CASE("groups wait for all their members and fall together") {
  for (bool bad : {false, true}) {
    Negotiator n(2, labels(2));
    auto member = [&](int i, int rank) {
      Request q = request("m" + std::to_string(i));
      q.group = "g";
      q.group_size = 2;
      if (bad && i == 1) q.shape = {rank + 1};
      return q;
    };
    for (int r : {0, 1}) n.announce(r, member(0, r), 0);
    CHECK(n.take_ready().empty());
    n.announce(0, member(1, 0), 0);
    n.announce(1, request("other"), 0);
    n.announce(0, request("other"), 0);
    n.announce(1, member(1, 1), 0);
    const auto ready = n.take_ready();
    REQUIRE(names(ready) == Names{"other", "m0", "m1"});
    CHECK(ready[1].unit == ready[2].unit);
    CHECK(ready[0].unit != ready[1].unit);
    CHECK(ready[0].response.error.ok());
    CHECK(ready[1].response.error.ok() == !bad);
    CHECK(ready[2].response.error.ok() == !bad);
  }
}

TEST_CASE("join: allreduce goes on without the joined rank, all joined ends it") {
  Negotiator n(3, labels(3));
  n.announce(0, request("a"), 0);
  n.announce(2, request("a"), 0);
  n.announce(0, request("b", Kind::broadcast), 0);
  n.announce(2, request("b", Kind::broadcast), 0);
  n.announce(1, request("join", Kind::join), 0);
  CHECK(n.anyone_joined());
  auto ready = n.take_ready();
  REQUIRE(names(ready) == Names{"a", "b"});
  CHECK(ready[0].response.error.ok());
  CHECK(contains(ready[1].response.error.message(), "rank 1"));
  n.announce(2, request("join", Kind::join), 0);
  n.announce(0, request("join", Kind::join), 0);
  ready = n.take_ready();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].response.kind == Kind::join);
  CHECK(ready[0].response.sizes == std::vector<int64_t>{0});
  CHECK(!n.anyone_joined());
}

TEST_CASE("process sets: lowest free id, no duplicates, an end to what waits in a removed one, a limit") {
  Negotiator n(9, labels(9));
  auto all_ranks = [&](const Request& q) {
    for (int r = 0; r < 9; ++r) n.announce(r, q, 0);
    auto ready = n.take_ready();
    REQUIRE(!ready.empty());
    return ready;
  };
  CHECK(all_ranks(set_request(Kind::add_set, {0, 1}, "x"))[0].response.sizes[0] == 1);
  CHECK(all_ranks(set_request(Kind::add_set, {1, 2}, "x"))[0].response.sizes[0] == 2);
  const auto again = all_ranks(set_request(Kind::add_set, {0, 1}, "x"));
  CHECK(contains(again[0].response.error.message(), "exists already with id 1"));
  Request inside = request("in");
  inside.set = 1;
  n.announce(0, inside, 0);
  auto ready = all_ranks(set_request(Kind::remove_set, {1}, "r"));
  REQUIRE(names(ready) == Names{"r", "in"});
  CHECK(ready[0].response.sizes == std::vector<int64_t>{1, 1});
  CHECK(contains(ready[1].response.error.message(), "process set 1 does not exist"));
  n.announce(1, inside, 0);  // the other member comes late
  CHECK(!n.take_ready().at(0).response.error.ok());
  CHECK(all_ranks(set_request(Kind::remove_set, {0}, "r"))[0].response.sizes[0] == 0);
  const auto fresh = all_ranks(set_request(Kind::add_set, {0, 2}, "x"));
  CHECK(fresh[0].response.sizes[0] == 1);
  CHECK(fresh[0].response.sizes[1] == 3);  // generations never repeat
  int refused = 0;
  for (int mask = 1; mask < 511; ++mask) {
    std::vector<int64_t> ranks;
    for (int r = 0; r < 9; ++r) {
      if (mask >> r & 1) ranks.push_back(r);
    }
    const auto made = all_ranks(set_request(Kind::add_set, ranks, "x"));
    if (made[0].response.error.ok()) CHECK(made[0].response.sizes[0] < kMaxProcessSets);
    refused += contains(made[0].response.error.message(), "no more than 256");
  }
  CHECK(refused == 510 - 255);
}

TEST_CASE("unlike operations under one name become errors that name both") {
  Negotiator n(2, labels(2));
  n.announce(0, request("allreduce.loss"), 1);
  n.announce(1, request("broadcast.loss", Kind::broadcast), 1);
  n.fail_diverged(0.5);
  CHECK(n.take_ready().empty());
  n.fail_diverged(2);
  const auto ready = n.take_ready();
  REQUIRE(ready.size() == 2);
  for (const Ready& r : ready) {
    for (const char* part : {"allreduce.loss", "broadcast.loss", "rank 0", "rank 1"}) CHECK(contains(r.response.error.message(), part));
  }
  CHECK(!n.has_pending());
}

TEST_CASE("the stall check tells who is missing, and ends the job when asked to") {
  Negotiator n(4, labels(4));
  n.announce(1, request("late"), 10);
  n.announce(3, request("late"), 11);
  CHECK(n.waiting(9).empty());
  const auto waiting = n.waiting(10);
  REQUIRE(waiting.size() == 1);
  CHECK(waiting[0].ready == std::vector<int>{1, 3});
  CHECK(waiting[0].missing == std::vector<int>{0, 2});
  std::string text;
  int warnings = 0;
  const LogSink log = [&](LogLevel, const std::string& t) { text = t; ++warnings; };
  Stall stall(5, 20, labels(4));
  CHECK(stall.check(n, 14, log).ok());
  CHECK(warnings == 0);
  CHECK(stall.check(n, 16, log).ok());
  CHECK(warnings == 1);
  for (const char* part : {"late", "rank 0", "rank 2"}) CHECK(contains(text, part));
  CHECK(stall.check(n, 18, log).ok());
  CHECK(warnings == 1);
  const Status end = stall.check(n, 31, log);
  CHECK(end.code() == Code::timeout);
  CHECK(contains(end.message(), "late"));
  Stall never(0, 0, labels(4));
  CHECK(never.check(n, 1e6, log).ok());
  CHECK(warnings == 1);
}

TEST_CASE("fusion") {
  const FuseOptions wide{100, false};
  CHECK(fused({ready_of("a", 40), ready_of("b", 60), ready_of("c", 1)}, wide) == std::vector<Names>{{"a", "b"}, {"c"}});
  CHECK(fused({ready_of("a", 40), ready_of("b", 61), ready_of("c", 1)}, wide) == std::vector<Names>{{"a", "c"}, {"b"}});
  CHECK(fused({ready_of("a", 1), ready_of("b", 1)}, {0, false}) == std::vector<Names>{{"a"}, {"b"}});
  CHECK(fused({ready_of("a", 90, 1), ready_of("b", 90, 1)}, {0, false}) == std::vector<Names>{{"a", "b"}});  // promised together
  CHECK(fused({ready_of("a", 1, 1), ready_of("b", 1, 2)}, wide) == std::vector<Names>{{"a", "b"}});
  CHECK(fused({ready_of("a", 1, 1), ready_of("b", 1, 2), ready_of("c", 1, 1), ready_of("d", 1)}, {100, true}) ==
        std::vector<Names>{{"a", "c"}, {"b"}, {"d"}});
  auto apart = [&](auto change) {
    std::vector<Ready> two{ready_of("a", 1), ready_of("b", 1)};
    change(two[1]);
    CHECK(fused(two, wide).size() == 2);
  };
  apart([](Ready& r) { r.response.set = 1; });
  apart([](Ready& r) { r.response.dtype = DType::int8; });
  apart([](Ready& r) { r.response.op = ReduceOp::max; });
  apart([](Ready& r) { r.response.wire = WireFormat::fp16; });
  apart([](Ready& r) { r.response.prescale = 2; });
  apart([](Ready& r) { r.response.postscale = 2; });
  apart([](Ready& r) { r.response.kind = Kind::broadcast; });
  apart([](Ready& r) { r.response.error = Status(Code::mismatch, "x"); });
  apart([](Ready& r) { r.fence = 1; });
}

TEST_CASE("the coordinator's epochs: schedule, early and stale announcements, falling back") {
  Coordinator c(2, labels(2), {}, 16);
  uint64_t fence = 0;
  auto round = [&](uint64_t epoch) {
    ++fence;
    for (int r : {0, 1}) {
      Request q = request("g");
      q.fence = fence << kWeakFenceBits;
      c.announce(r, epoch, {q}, 0);
    }
    return c.decide();
  };
  std::vector<Response> responses;
  int rounds = 0;
  do {
    responses = round(0);
  } while (responses.back().kind != Kind::adopt_schedule && ++rounds < 10);
  REQUIRE(responses.back().kind == Kind::adopt_schedule);
  CHECK(rounds == 2);  // two equal periods after one operation before
  CHECK(c.epoch() == 1);
  Schedule schedule;
  REQUIRE(decode(responses.back().payload, &schedule));
  CHECK(schedule.buckets.size() == 1);
  CHECK(round(0).empty());  // void: announced before the schedule was known

  uint64_t position = 0;
  CHECK(!c.on_ready(0, schedule.id, 2, &position));
  CHECK(c.on_ready(1, schedule.id, 1, &position));
  CHECK(position == 1);
  CHECK(!c.on_ready(1, schedule.id + 1, 5, &position));
  CHECK(!c.on_revoke(schedule.id + 1, &position));
  CHECK(c.on_revoke(schedule.id, &position));
  CHECK(position == 1);
  CHECK(!c.on_revoke(schedule.id, &position));
  CHECK(!c.on_ready(1, schedule.id, 2, &position));

  c.announce(1, 2, {request("early")}, 0);  // this rank has left already
  CHECK(c.decide().empty());
  c.fall_back(100, 0);  // it lasted, so the same may be proposed again
  CHECK(c.epoch() == 2);
  c.announce(0, 2, {request("early")}, 0);
  responses = c.decide();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].names == Names{"early"});
  for (int i = 0; i < 200; ++i) CHECK(round(2).back().kind != Kind::adopt_schedule);  // rank 1 has not settled yet
  c.settled(0, 2);
  c.settled(1, 2);
  CHECK(round(2).back().kind == Kind::adopt_schedule);
}
