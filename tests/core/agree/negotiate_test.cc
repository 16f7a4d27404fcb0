// The coordinator's decisions without engines: readiness, order, fusion and errors.
#include "agree/negotiate.h"

#include <doctest/doctest.h>

#include "requests.h"
#include "transport/segment.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("ready when the last rank has announced, in the order of completion") {
  Negotiator n(3, labels(3));
  for (int r : {2, 0}) {
    n.add_request(r, request("a"), 0);
    n.add_request(r, request("b"), 0);
  }
  CHECK(n.take_ready().empty());
  n.add_request(1, request("b"), 0);
  CHECK(names(n.take_ready()) == Names{"b"});
  CHECK(n.has_pending());
  n.add_request(1, request("a"), 0);
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
      {"device of the tensor", t, with([](Request& q) { q.device = DeviceKind::cuda; }), "CPU", "CUDA GPU"},
      {"wire format", t, with([](Request& q) { q.wire = WireFormat::int8; }), "none", "int8"},
      {"reduction between hosts", t, with([](Request& q) { q.across_hosts = true; }), "whole", "in parts"},
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

TEST_CASE("join: allreduce goes on without the joined rank, all joined ends it") {
  Negotiator n(3, labels(3));
  n.add_request(0, request("a"), 0);
  n.add_request(2, request("a"), 0);
  n.add_request(0, request("b", Kind::broadcast), 0);
  n.add_request(2, request("b", Kind::broadcast), 0);
  n.add_request(1, request("join", Kind::join), 0);
  CHECK(n.anyone_joined());
  auto ready = n.take_ready();
  REQUIRE(names(ready) == Names{"a", "b"});
  CHECK(ready[0].response.error.ok());
  CHECK(ready[0].response.partial);
  CHECK(contains(ready[1].response.error.message(), "rank 1"));
  n.add_request(2, request("join", Kind::join), 0);
  n.add_request(0, request("join", Kind::join), 0);
  ready = n.take_ready();
  REQUIRE(ready.size() == 1);
  CHECK(ready[0].response.kind == Kind::join);
  CHECK(ready[0].response.sizes == std::vector<int64_t>{0});
  CHECK(!n.anyone_joined());
}

TEST_CASE("process sets: lowest free id, no duplicates, an end to what waits in a removed one, a limit") {
  Negotiator n(9, labels(9));
  auto all_ranks = [&](const Request& q) {
    for (int r = 0; r < 9; ++r) n.add_request(r, q, 0);
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
  n.add_request(0, inside, 0);
  auto ready = all_ranks(set_request(Kind::remove_set, {1}, "r"));
  REQUIRE(names(ready) == Names{"r", "in"});
  CHECK(ready[0].response.sizes == std::vector<int64_t>{1, 1});
  CHECK(contains(ready[1].response.error.message(), "process set 1 no longer exists"));
  n.add_request(1, inside, 0);  // the other member requests late
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
    const auto added = all_ranks(set_request(Kind::add_set, ranks, "x"));
    if (added[0].response.error.ok()) CHECK(added[0].response.sizes[0] < kMaxProcessSets);
    refused += contains(added[0].response.error.message(), "at most 256");
  }
  CHECK(refused == 510 - 255);
}

TEST_CASE("unlike operations under one name become errors that name both") {
  Negotiator n(2, labels(2));
  n.add_request(0, request("allreduce.loss"), 1);
  n.add_request(1, request("broadcast.loss", Kind::broadcast), 1);
  n.fail_diverged(0.5);
  CHECK(n.take_ready().empty());
  n.fail_diverged(2);
  const auto ready = n.take_ready();
  REQUIRE(ready.size() == 2);
  for (const Ready& r : ready) {
    for (const char* part : {"allreduce.loss", "broadcast.loss", "rank 0", "rank 1"}) CHECK(contains(r.response.error.message(), part));
  }
  CHECK(!n.has_pending());
  Negotiator three(3, labels(3));
  three.add_request(0, request("allreduce.loss"), 1);
  three.add_request(1, request("broadcast.loss", Kind::broadcast), 1);
  three.fail_diverged(2);
  CHECK(three.take_ready().empty());  // rank 2 may request either
}
