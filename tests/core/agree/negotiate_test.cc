// The coordinator's decisions, without a world: what is ready, in which order, fused how, and what is wrong.
#include "agree/negotiate.h"

#include <doctest/doctest.h>

#include "agree/coordinator.h"
#include "agree/stall.h"
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
  r.group_size = unit != 0 ? 2 : 0;
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
  struct Wrong {
    const char* what;
    Request left, right;
    const char *one, *other;
  };
  auto with = [](auto change, Kind kind = Kind::allreduce) {
    Request q = request("t", kind);
    change(q);
    return q;
  };
  const Request t = request("t");
  const Wrong all[] = {
      {"operation", t, request("t", Kind::allgather), "allreduce", "allgather"},
      {"dtype", t, with([](Request& q) { q.dtype = DType::int64; }), "float32", "int64"},
      {"shape", t, request("t", Kind::allreduce, {2, 1}), "[2]", "[2, 1]"},
      {"reduction op", t, with([](Request& q) { q.op = ReduceOp::min; }), "Sum", "Min"},
      {"wire format", t, with([](Request& q) { q.wire = WireFormat::int8; }), "none", "int8"},
      {"prescale", t, with([](Request& q) { q.prescale = 0.5; }), "1", "0.5"},
      {"postscale", t, with([](Request& q) { q.postscale = 0.1; }), "1", "0.1"},
      {"group", t, with([](Request& q) {
    q.group = "g";
    q.group_size = 3;
  }),
       "0", "3"},
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

namespace {

Request member_of(const std::string& group, uint32_t size, const std::string& name, std::vector<int64_t> shape = {2}) {
  Request q = request(name, Kind::allreduce, std::move(shape));
  q.group = group;
  q.group_size = size;
  return q;
}

std::string waiting_names(const Negotiator& n, double since) {
  std::string all;
  for (const auto& w : n.waiting(since)) {
    all += w.name + ':';
    for (int r : w.missing) all += std::to_string(r);
    all += ' ';
  }
  return all;
}

}  // namespace

TEST_CASE("groups of one name and different sizes do not mix") {
  Negotiator n(2, labels(2));
  for (int r : {0, 1}) n.announce(r, member_of("g", 2, "a"), 0);
  for (int r : {0, 1}) n.announce(r, member_of("g", 3, "b"), 0);
  for (int r : {0, 1}) n.announce(r, member_of("g", 3, "c"), 0);
  CHECK(n.take_ready().empty());
  for (int r : {0, 1}) n.announce(r, member_of("g", 2, "d"), 0);
  CHECK(names(n.take_ready()) == Names{"a", "d"});
  for (int r : {0, 1}) n.announce(r, member_of("g", 3, "e"), 0);
  CHECK(names(n.take_ready()) == Names{"b", "c", "e"});
  CHECK(!n.has_pending());
}

TEST_CASE("what fusion counts of an allgather is its result") {
  Negotiator n(2, labels(2));
  for (int r : {0, 1}) n.announce(r, request("a", Kind::allgather, {r == 0 ? 0 : 7, 3}), 0);
  CHECK(n.take_ready().at(0).bytes == 7 * 3 * 4);
}

TEST_CASE("the fence of a group is its last member's, whichever is complete first") {
  Request first = member_of("g", 2, "a"), second = member_of("g", 2, "b");
  second.fence = uint64_t{1} << kWeakFenceBits;  // another thread has waited meanwhile
  for (bool turned : {false, true}) {
    Negotiator n(1, labels(1));
    n.announce(0, turned ? second : first, 0);
    n.announce(0, turned ? first : second, 0);
    const auto ready = n.take_ready();
    REQUIRE(ready.size() == 2);
    for (const Ready& member : ready) CHECK(member.fence == second.fence);
    CHECK(fuse(ready, {}).size() == 1);
  }
}

TEST_CASE("whatever waits is seen to wait: members of groups, and joins") {
  Negotiator n(3, labels(3));
  for (int r : {0, 1, 2}) n.announce(r, member_of("g", 3, "a"), 1);
  CHECK(n.has_pending());
  CHECK(waiting_names(n, 0.5) == "");
  CHECK(waiting_names(n, 1) == "group 'g' (only 1 of its 3 members):012 ");  // as far as anybody knows
  for (int r : {0, 1}) n.announce(r, member_of("g", 3, "b"), 2);
  CHECK(waiting_names(n, 2) == "b:2 ");
  n.announce(2, member_of("g", 3, "b"), 2);
  CHECK(waiting_names(n, 2) == "group 'g' (only 2 of its 3 members):012 ");
  for (int r : {0, 1, 2}) n.announce(r, member_of("g", 3, "c"), 3);
  CHECK(n.take_ready().size() == 3);
  CHECK(!n.has_pending());

  n.announce(1, request("join", Kind::join), 4);
  CHECK(n.has_pending());
  CHECK(waiting_names(n, 4) == "join:02 ");
  for (int r : {0, 2}) n.announce(r, request("x"), 9);  // the others are busy
  CHECK(n.take_ready().size() == 1);
  CHECK(waiting_names(n, 8) == "");
  CHECK(waiting_names(n, 9) == "join:02 ");
}

TEST_CASE("a group that fails: what is held, what comes later, what only some ranks know, and what is announced twice") {
  Negotiator n(2, labels(2));
  auto errors = [&n] {
    std::string all;
    for (const Ready& r : n.take_ready()) all += r.response.names.front() + (r.response.error.ok() ? "+" : "-");
    return all;
  };
  auto both = [&n](auto make) {
    for (int r : {0, 1}) n.announce(r, make(r), 0);
  };
  both([](int) { return member_of("g", 3, "a"); });
  both([](int r) { return member_of("g", 3, "b", {r + 1}); });
  CHECK(errors() == "a-b-");
  CHECK(!n.may_be_scheduled({}));  // nobody would know of the error any more
  both([](int) { return member_of("g", 3, "c"); });
  CHECK(errors() == "c-");
  CHECK(n.may_be_scheduled({}));
  for (const char* name : {"a", "b", "c"}) both([name](int) { return member_of("g", 3, name); });
  CHECK(errors() == "a+b+c+");

  for (int few : {0, 1}) {  // whichever rank is the one with the smaller group
    both([few](int r) { return member_of("g", r == few ? 2 : 3, "a"); });
    both([few](int r) { return member_of("g", r == few ? 2 : 3, "b"); });
    CHECK(errors() == "a-b-");
    n.announce(1 - few, member_of("g", 3, "c"), 0);
    n.fail_diverged(1);
    CHECK(errors() == "c-");
    CHECK(!n.has_pending());
    CHECK(n.may_be_scheduled({}));
  }

  for (double late : {0.0, 0.5}) {  // ranks mean different members
    for (int r : {0, 1}) {
      for (const std::string name : {"a", "b", r == 0 ? "c" : "d"})
        n.announce(r, member_of("g", 3, name, {name == "a" ? r + 1 : 2}), r * late);
    }
    CHECK(errors() == "a-b-");
    n.fail_diverged(0.25);
    CHECK(errors() == "c-d-");
    CHECK(n.may_be_scheduled({}));
    for (const char* name : {"a", "b", "c"}) both([name](int) { return member_of("g", 3, name); });
    CHECK(errors() == "a+b+c+");
  }

  both([](int) { return member_of("g", 2, "a"); });
  n.announce(1, member_of("g", 2, "a"), 0);
  CHECK(errors() == "a-");
  both([](int) { return member_of("g", 2, "b"); });
  CHECK(errors() == "b-");
}

TEST_CASE("a group in a set that is removed") {
  Negotiator n(2, labels(2));
  for (int r : {0, 1}) n.announce(r, set_request(Kind::add_set, {0}, "x"), 0);
  (void)n.take_ready();
  Request q = member_of("g", 2, "a");
  q.set = 1;
  n.announce(0, q, 0);
  CHECK(n.take_ready().empty());
  for (int r : {0, 1}) n.announce(r, set_request(Kind::remove_set, {1}, "x"), 0);
  const auto ready = n.take_ready();
  REQUIRE(names(ready) == Names{"x", "a"});
  CHECK(contains(ready[1].response.error.message(), "process set 1 does not exist"));
  q.name = "b";
  n.announce(0, q, 0);
  CHECK(!n.take_ready().at(0).response.error.ok());
  CHECK(!n.has_pending());
}

TEST_CASE("a schedule takes over only what it knows") {
  Negotiator n(2, labels(2));
  auto period = [](const std::string& name, bool unnamed, Kind kind = Kind::allreduce) {
    Ready r = ready_of(name, 1);
    r.unnamed = unnamed;
    r.response.kind = kind;
    return std::vector<Ready>{r};
  };
  CHECK(n.may_be_scheduled(period("a", false)));
  n.announce(0, request("a"), 0);
  CHECK(n.may_be_scheduled(period("a", false)));
  CHECK(!n.may_be_scheduled(period("b", false)));
  n.clear_pending();
  Request unnamed = request("allreduce.noname.7");
  unnamed.unnamed = true;
  n.announce(0, unnamed, 0);
  CHECK(n.may_be_scheduled(period("allreduce.noname.5", true)));
  CHECK(!n.may_be_scheduled(period("broadcast.noname.7", true, Kind::broadcast)));
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

TEST_CASE("join: a rank that joins while its own operation waits counts once") {
  Negotiator n(3, labels(3));
  n.announce(0, request("a"), 0);
  n.announce(0, request("join", Kind::join), 0);
  n.announce(1, request("a"), 0);
  CHECK(n.take_ready().empty());  // rank 2 may still come with it
  n.announce(2, request("a"), 0);
  auto ready = n.take_ready();
  REQUIRE(names(ready) == Names{"a"});
  CHECK(ready[0].response.error.ok());
  // What comes later is not waited for there.
  n.announce(1, request("b"), 0);
  n.announce(2, request("b"), 0);
  CHECK(names(n.take_ready()) == Names{"b"});
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

TEST_CASE("unlike operations are an error only when each rank has announced one of them") {
  auto failed = [](int world, const std::vector<std::pair<int, Request>>& announced) {
    Negotiator n(world, labels(world));
    for (const auto& [rank, q] : announced) n.announce(rank, q, 1);
    n.fail_diverged(2);
    return names(n.take_ready());
  };
  const Request reduce = request("allreduce.loss"), send = request("broadcast.loss", Kind::broadcast);
  CHECK(failed(3, {{0, reduce}, {1, send}, {2, send}}) == Names{"allreduce.loss", "broadcast.loss"});
  CHECK(failed(3, {{0, reduce}, {1, send}}).empty());               // rank 2 may come with either
  CHECK(failed(2, {{0, reduce}, {0, send}, {1, send}}) == Names{"broadcast.loss"});  // complete, and rank 1 may come with the other
  CHECK(failed(2, {{0, reduce}, {1, request("broadcast.other", Kind::broadcast)}}).empty());
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
  const LogSink log = [&](LogLevel, const std::string& t) {
    text = t;
    ++warnings;
  };
  bool told = false;
  auto check = [&](Stall& s, double now) { return s.check(n, now, log, &told); };
  Stall stall(5, 20, labels(4));
  CHECK(check(stall, 14).ok());
  CHECK(warnings == 0);
  CHECK(!told);
  CHECK(check(stall, 16).ok());
  CHECK(told);
  CHECK(warnings == 1);
  for (const char* part : {"late", "rank 0", "rank 2"}) CHECK(contains(text, part));
  CHECK(check(stall, 18).ok());
  CHECK(warnings == 1);
  const Status end = check(stall, 31);
  CHECK(end.code() == Code::timeout);
  CHECK(contains(end.message(), "late"));
  Stall early(5, 20, labels(4)), sharp(5, 20, labels(4));
  CHECK(early.check(n, 29.9, nullptr, &told).ok());
  CHECK(sharp.check(n, 30, nullptr, &told).code() == Code::timeout);  // 20 s after it was announced
  Stall never(0, 0, labels(4));
  CHECK(check(never, 1e6).ok());
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
  for (Kind kind : {Kind::allgather, Kind::reducescatter, Kind::broadcast, Kind::alltoall, Kind::barrier}) {
    std::vector<Ready> two{ready_of("a", 1), ready_of("b", 1)};
    for (Ready& r : two) r.response.kind = kind, r.response.sizes = {1, 2};
    const auto responses = fuse(two, wide);
    CHECK(responses.size() == (joinable(kind) ? 1 : 2));
    if (kind == Kind::allgather) CHECK(responses[0].sizes == std::vector<int64_t>{1, 2, 1, 2});
  }
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
