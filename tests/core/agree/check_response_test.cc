// Decisions that contradict this rank's request, and operations that no rank can have requested, are errors.
#include "agree/check_response.h"

#include <doctest/doctest.h>

#include "agree/negotiate.h"

using namespace hvd;

namespace {

constexpr int kSize = 3, kRank = 1;

Request request_of(Kind kind, std::vector<int64_t> shape) {
  Request q;
  q.kind = kind;
  q.name = "x";
  q.shape = std::move(shape);
  return q;
}

Response response_of(const Request& q) {
  Response r;
  r.kind = q.kind;
  r.names = {q.name};
  r.shapes = {q.shape};
  return r;
}

bool accepted(const Response& r, const Request& q) { return check_response(r, {&q}, kSize, kRank).ok(); }

}  // namespace

TEST_CASE("a decision about another tensor than this rank's is refused") {
  const Request q = request_of(Kind::allreduce, {2, 3});
  CHECK(accepted(response_of(q), q));
  auto refused = [&](auto change) {
    Response r = response_of(q);
    change(r);
    return !accepted(r, q);
  };
  CHECK(refused([](Response& r) { r.shapes[0] = {2, 300}; }));
  CHECK(refused([](Response& r) { r.shapes[0] = {6}; }));
  CHECK(refused([](Response& r) { r.dtype = DType::float64; }));
  CHECK(refused([](Response& r) { r.kind = Kind::broadcast; }));
  CHECK(refused([](Response& r) { r.op = ReduceOp::max; }));
  CHECK(refused([](Response& r) { r.wire = WireFormat::int8; }));
  CHECK(refused([](Response& r) { r.device = DeviceKind::cuda; }));
  CHECK(refused([](Response& r) { r.across_hosts = true; }));
  CHECK(refused([](Response& r) { r.names.clear(), r.shapes.clear(); }));
  CHECK(refused([](Response& r) { r.names.push_back("y"); }));
  CHECK(refused([](Response& r) { r.kind = Kind::adopt_schedule; }));
  const Status why = check_response(response_of(request_of(Kind::allreduce, {7})), {&q}, kSize, kRank);
  CHECK(why.code() == Code::internal);
  CHECK(why.message() == "rank 0's decision about allreduce 'x' is invalid: its shape differs from this rank's (shape [7], here [2, 3])");
  // A joined rank contributes zeros to any reduction.
  CHECK(check_response(response_of(q), {nullptr}, kSize, kRank).ok());
}

TEST_CASE("sizes have to be possible, and this rank's own") {
  Request q = request_of(Kind::allgather, {4, 2});
  Response r = response_of(q);
  for (const auto& [sizes, good] : std::vector<std::pair<std::vector<int64_t>, bool>>{{{1, 4, 9}, true},
                                                                                      {{0, 4, 0}, true},
                                                                                      {{1, 4}, false},
                                                                                      {{1, 5, 9}, false},
                                                                                      {{-1, 4, 9}, false},
                                                                                      {{1, 4, INT64_MAX / 4}, false},
                                                                                      {{INT64_MAX, 4, INT64_MAX}, false},
                                                                                      {{}, false}}) {
    CAPTURE(shape_string(sizes));
    r.sizes = sizes;
    CHECK(accepted(r, q) == good);
  }
  q = request_of(Kind::alltoall, {6});
  q.splits = {1, 2, 3};
  r = response_of(q);
  r.sizes = {9, 9, 9, 1, 2, 3, 0, 0, 0};
  CHECK(accepted(r, q));
  r.sizes[4] = 3;  // rows that this rank sends
  CHECK(!accepted(r, q));
  r.sizes = {9, -9, 9, 1, 2, 3, 0, 0, 0};  // rows that it receives
  CHECK(!accepted(r, q));
  r.sizes = {1, 2, 3};
  CHECK(!accepted(r, q));
}

TEST_CASE("process sets have ranks that there are") {
  Response r;
  r.names = {"set"};
  r.shapes = {{}};
  r.kind = Kind::add_set;
  for (const auto& [sizes, good] : std::vector<std::pair<std::vector<int64_t>, bool>>{{{1, 7, 0, 2}, true},
                                                                                      {{1, 7}, false},
                                                                                      {{0, 7, 0, 2}, false},
                                                                                      {{256, 7, 0, 2}, false},
                                                                                      {{1, 7, 0, 3}, false},
                                                                                      {{1, 7, -1, 2}, false},
                                                                                      {{1, 7, 2, 0}, false},
                                                                                      {{1, 7, 1, 1}, false},
                                                                                      {{}, false}}) {
    CAPTURE(shape_string(sizes));
    r.sizes = sizes;
    CHECK(check_set_change(r, kSize).ok() == good);
  }
  r.kind = Kind::remove_set;
  for (const auto& [sizes, good] : std::vector<std::pair<std::vector<int64_t>, bool>>{
           {{1, 1}, true}, {{0, 0}, true}, {{0, 5000}, true}, {{1, 0}, false}, {{1, 5000}, false}, {{1}, false}}) {
    CAPTURE(shape_string(sizes));
    r.sizes = sizes;
    CHECK(check_set_change(r, kSize).ok() == good);
  }
}

TEST_CASE("the coordinator refuses what no rank can have meant") {
  auto decide = [](std::vector<std::pair<int, Request>> requested) {
    Negotiator n(2, {"rank 0", "rank 1"});
    for (auto& [rank, q] : requested) n.add_request(rank, q, 0);
    const auto ready = n.take_ready();
    REQUIRE(ready.size() == 1);
    return ready[0].response.error;
  };
  Request removal = request_of(Kind::remove_set, {});  // removes no set
  CHECK(decide({{0, removal}, {1, removal}}).code() == Code::invalid_argument);
  Request trade = request_of(Kind::alltoall, {6});
  trade.splits = {1, 2, 3, 4};
  CHECK(decide({{0, trade}, {1, trade}}).code() == Code::invalid_argument);
  trade.splits = {7, -1};
  CHECK(decide({{0, trade}, {1, trade}}).code() == Code::invalid_argument);
  Request from = request_of(Kind::broadcast, {1});
  from.root = 2;
  CHECK(decide({{0, from}, {1, from}}).code() == Code::invalid_argument);
  const Request twice = request_of(Kind::allreduce, {1});
  CHECK(decide({{1, twice}, {1, twice}}).message() == "allreduce 'x': rank 1 has requested it twice");
}
