#include "agree/coordinator.h"

#include <doctest/doctest.h>

#include "requests.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("a schedule takes over only what it knows") {
  Negotiator n(2, labels(2));
  auto period = [](const std::string& name, bool unnamed, Kind kind = Kind::allreduce) {
    Ready r = ready_of(name, 1);
    r.unnamed = unnamed;
    r.response.kind = kind;
    return std::vector<Ready>{r};
  };
  CHECK(n.may_be_scheduled(period("a", false)));
  n.add_request(0, request("a"), 0);
  CHECK(n.may_be_scheduled(period("a", false)));
  CHECK(!n.may_be_scheduled(period("b", false)));
  n.clear_pending();
  Request unnamed = request("allreduce.noname.7");
  unnamed.unnamed = true;
  n.add_request(0, unnamed, 0);
  CHECK(n.may_be_scheduled(period("allreduce.noname.5", true)));
  CHECK(!n.may_be_scheduled(period("broadcast.noname.7", true, Kind::broadcast)));
}

TEST_CASE("positions in a schedule: whoever is last is waited for, in any order, and several buckets may open at once") {
  constexpr int kRanks = 5;
  Coordinator c(kRanks, labels(kRanks), {}, 16);
  std::vector<Response> responses;
  for (uint64_t fence = 1; responses.empty() || responses.back().kind != Kind::adopt_schedule; ++fence) {
    REQUIRE(fence < 10);
    for (int r = 0; r < kRanks; ++r) {
      Request q = request("g");
      q.fence = fence << kWeakFenceBits;
      c.add_requests(r, 0, {q}, 0);
    }
    responses = c.decide();
  }
  Schedule schedule;
  REQUIRE(decode(responses.back().payload, &schedule));
  uint64_t go = 9;
  for (int r : {3, 0, 4, 1}) CHECK(!c.on_ready(r, schedule.id, 2, &go));
  CHECK(go == 0);
  CHECK(c.on_ready(2, schedule.id, 1, &go));  // the other ranks are ahead
  CHECK(go == 1);
  CHECK(!c.on_ready(0, schedule.id, 4, &go));
  CHECK(c.on_ready(2, schedule.id, 7, &go));
  CHECK(go == 2);
  for (int r : {4, 3}) CHECK(!c.on_ready(r, schedule.id, 4, &go));
  CHECK(c.on_ready(1, schedule.id, 3, &go));
  CHECK(go == 3);
}

TEST_CASE("the coordinator's epochs: schedule, early and stale announcements, falling back") {
  Coordinator c(2, labels(2), {}, 16);
  uint64_t fence = 0;
  auto round = [&](uint64_t epoch) {
    ++fence;
    for (int r : {0, 1}) {
      Request q = request("g");
      q.fence = fence << kWeakFenceBits;
      c.add_requests(r, epoch, {q}, 0);
    }
    return c.decide();
  };
  std::vector<Response> responses;
  int rounds = 0;
  do {
    responses = round(0);
  } while (responses.back().kind != Kind::adopt_schedule && ++rounds < 10);
  REQUIRE(responses.back().kind == Kind::adopt_schedule);
  CHECK(rounds == 2);  // two equal periods after one earlier operation
  CHECK(c.epoch() == 1);
  Schedule schedule;
  REQUIRE(decode(responses.back().payload, &schedule));
  CHECK(schedule.buckets.size() == 1);
  CHECK(round(0).empty());  // discarded: requested before the schedule was known

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

  c.add_requests(1, 2, {request("early")}, 0);  // this rank has left the schedule already
  CHECK(c.decide().empty());
  c.fall_back(100, 0);  // it lasted, so the same schedule may be proposed again
  CHECK(c.epoch() == 2);
  c.add_requests(0, 2, {request("early")}, 0);
  responses = c.decide();
  REQUIRE(responses.size() == 1);
  CHECK(responses[0].names == Names{"early"});
  for (int i = 0; i < 200; ++i) CHECK(round(2).back().kind != Kind::adopt_schedule);  // rank 1 has not settled yet
  c.settled(0, 2);
  c.settled(1, 2);
  CHECK(round(2).back().kind == Kind::adopt_schedule);
}
