// Groups: complete, incomplete, failing, inconsistent, and in a removed process set.
#include <doctest/doctest.h>

#include <set>

#include "requests.h"

using namespace hvd;
using namespace hvd::testing;

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
    for (int r : {0, 1}) n.add_request(r, member(0, r), 0);
    CHECK(n.take_ready().empty());
    n.add_request(0, member(1, 0), 0);
    n.add_request(1, request("other"), 0);
    n.add_request(0, request("other"), 0);
    n.add_request(1, member(1, 1), 0);
    const auto ready = n.take_ready();
    REQUIRE(names(ready) == Names{"other", "m0", "m1"});
    CHECK(ready[1].unit == ready[2].unit);
    CHECK(ready[0].unit != ready[1].unit);
    CHECK(ready[0].response.error.ok());
    CHECK(ready[1].response.error.ok() == !bad);
    CHECK(ready[2].response.error.ok() == !bad);
  }
}

TEST_CASE("the fence of a group is its last member's, whichever is complete first") {
  Request first = member_of("g", 2, "a"), second = member_of("g", 2, "b");
  second.fence = uint64_t{1} << kWeakFenceBits;  // another thread has waited meanwhile
  for (bool turned : {false, true}) {
    Negotiator n(1, labels(1));
    n.add_request(0, turned ? second : first, 0);
    n.add_request(0, turned ? first : second, 0);
    const auto ready = n.take_ready();
    REQUIRE(ready.size() == 2);
    for (const Ready& member : ready) CHECK(member.fence == second.fence);
    CHECK(fuse(ready, {}).size() == 1);
  }
}

TEST_CASE("whatever waits is seen to wait: members of groups, and joins") {
  Negotiator n(3, labels(3));
  for (int r : {0, 1, 2}) n.add_request(r, member_of("g", 3, "a"), 1);
  CHECK(n.has_pending());
  CHECK(waiting_names(n, 0.5) == "");
  CHECK(waiting_names(n, 1) == "group 'g' (only 1 of its 3 members):012 ");  // as far as this rank knows
  for (int r : {0, 1}) n.add_request(r, member_of("g", 3, "b"), 2);
  CHECK(waiting_names(n, 2) == "b:2 ");
  n.add_request(2, member_of("g", 3, "b"), 2);
  CHECK(waiting_names(n, 2) == "group 'g' (only 2 of its 3 members):012 ");
  for (int r : {0, 1, 2}) n.add_request(r, member_of("g", 3, "c"), 3);
  CHECK(n.take_ready().size() == 3);
  CHECK(!n.has_pending());

  n.add_request(1, request("join", Kind::join), 4);
  CHECK(n.has_pending());
  CHECK(waiting_names(n, 4) == "join:02 ");
  for (int r : {0, 2}) n.add_request(r, request("x"), 9);  // the other ranks are busy
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
    for (int r : {0, 1}) n.add_request(r, make(r), 0);
  };
  both([](int) { return member_of("g", 3, "a"); });
  both([](int r) { return member_of("g", 3, "b", {r + 1}); });
  CHECK(errors() == "a-b-");
  CHECK(!n.may_be_scheduled({}));  // otherwise no rank would learn of the error any more
  both([](int) { return member_of("g", 3, "c"); });
  CHECK(errors() == "c-");
  CHECK(n.may_be_scheduled({}));
  for (const char* name : {"a", "b", "c"}) both([name](int) { return member_of("g", 3, name); });
  CHECK(errors() == "a+b+c+");

  for (int few : {0, 1}) {  // whichever rank has the smaller group
    both([few](int r) { return member_of("g", r == few ? 2 : 3, "a"); });
    both([few](int r) { return member_of("g", r == few ? 2 : 3, "b"); });
    CHECK(errors() == "a-b-");
    n.add_request(1 - few, member_of("g", 3, "c"), 0);
    n.fail_diverged(1);
    CHECK(errors() == "c-");
    CHECK(!n.has_pending());
    CHECK(n.may_be_scheduled({}));
  }

  for (double late : {0.0, 0.5}) {  // ranks request different members
    for (int r : {0, 1}) {
      for (const std::string name : {"a", "b", r == 0 ? "c" : "d"})
        n.add_request(r, member_of("g", 3, name, {name == "a" ? r + 1 : 2}), r * late);
    }
    CHECK(errors() == "a-b-");
    n.fail_diverged(0.25);
    CHECK(errors() == "c-d-");
    CHECK(n.may_be_scheduled({}));
    for (const char* name : {"a", "b", "c"}) both([name](int) { return member_of("g", 3, name); });
    CHECK(errors() == "a+b+c+");
  }

  both([](int) { return member_of("g", 2, "a"); });
  n.add_request(1, member_of("g", 2, "a"), 0);
  CHECK(errors() == "a-");
  both([](int) { return member_of("g", 2, "b"); });
  CHECK(errors() == "b-");
}

TEST_CASE("groups of one name whose sizes differ between ranks become errors, whether or not they have a member in common") {
  Negotiator n(3, labels(3));
  const auto add_requests = [&n](int rank, uint32_t size, double when) {
    for (uint32_t i = 1; i <= size; ++i)
      n.add_request(rank, member_of("g", size, "g_" + std::to_string(i) + "of" + std::to_string(size)), when);
  };
  add_requests(0, 2, 0);
  add_requests(1, 3, 0);
  n.fail_diverged(1);
  CHECK(n.take_ready().empty());  // rank 2 may have both
  add_requests(2, 2, 0.5);
  n.fail_diverged(1);
  const auto ready = n.take_ready();
  CHECK(names(ready) == Names{"g_1of2", "g_1of3", "g_2of2", "g_2of3", "g_3of3"});
  for (const Ready& one : ready) {
    CHECK(one.response.error.message().find("the size of the group 'g': 2 on rank 0 on host0, 3 on rank 1 on host1") != std::string::npos);
  }
  CHECK(!n.has_pending());
  CHECK(n.may_be_scheduled({}));
  for (int r : {0, 1, 2}) add_requests(r, 3, 2);  // the group can be tried again
  for (const Ready& one : n.take_ready()) CHECK(one.response.error.ok());
  CHECK(!n.has_pending());

  for (int r : {0, 1, 2}) add_requests(r, r == 0 ? 1 : 2, 3);
  n.fail_diverged(3);
  CHECK(n.take_ready().size() == 3);
  CHECK(!n.has_pending());
  for (int r : {0, 1, 2}) {  // ranks may have several groups of one name in flight
    add_requests(r, r == 0 ? 2 : 3, 4);
    add_requests(r, r == 0 ? 3 : 2, 4);
  }
  n.fail_diverged(4);
  for (const Ready& one : n.take_ready()) CHECK(one.response.error.ok());
}

namespace {

Request unnamed(int number, const std::string& group = "", uint32_t size = 0) {
  Request q = member_of(group, size, "allreduce.noname." + std::to_string(number));
  q.unnamed = true;
  return q;
}
const std::string kGroup = "grouped_allreduce.noname.0";

// Returns the names of failed operations, each once.
std::set<std::string> failures(Negotiator* n) {
  std::set<std::string> all;
  for (const Ready& one : n->take_ready()) {
    CHECK(contains(one.response.error.message(), "the size of the group"));
    all.insert(one.response.names.front());
  }
  return all;
}

}  // namespace

TEST_CASE("groups of unlike size while a rank has joined: nothing waits, and only members of the set are waited for") {
  {
    Negotiator n(3, labels(3));
    for (int r : {0, 1}) {
      for (int i = 0; i < 2 + r; ++i) n.add_request(r, unnamed(i, kGroup, static_cast<uint32_t>(2 + r)), 0);
    }
    CHECK(n.take_ready().empty());
    n.add_request(2, request("join", Kind::join), 0);
    CHECK(failures(&n).size() == 3);
    for (int r : {0, 1}) n.add_request(r, request("join", Kind::join), 0);
    CHECK(names(n.take_ready()) == Names{kJoinName});
    for (int r : {0, 1, 2}) n.add_request(r, unnamed(2), 0);  // numbered from 0 again
    CHECK(n.take_ready().at(0).response.error.ok());
    CHECK(!n.has_pending());
  }
  Negotiator n(4, labels(4));
  for (int r : {0, 1, 2, 3}) n.add_request(r, set_request(Kind::add_set, {0, 1, 2}, "x"), 0);
  (void)n.take_ready();
  n.add_request(3, request("join", Kind::join), 0);
  const auto add_requests = [&n](int rank, uint32_t size) {
    for (uint32_t i = 1; i <= size; ++i) {
      Request q = member_of("g", size, "g_" + std::to_string(i) + "of" + std::to_string(size));
      q.set = 1;
      n.add_request(rank, q, 0);
    }
  };
  add_requests(0, 2);
  add_requests(1, 3);
  n.fail_diverged(1);
  CHECK(n.take_ready().empty());  // rank 2 has requested nothing
  add_requests(2, 3);
  n.fail_diverged(1);
  CHECK(failures(&n).size() == 5);
}
