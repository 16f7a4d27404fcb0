// Groups on the submitting rank: held until complete, rejected as a whole, released if a caller waits for an
// incomplete one.
#include "engine/group_assembly.h"

#include <doctest/doctest.h>

#include "engine/submissions.h"

using namespace hvd;

namespace {

OperationPtr member_of(const std::string& name, uint32_t size = 3, const std::string& group = "g") {
  auto op = std::make_shared<Operation>();
  op->request.name = name;
  op->request.shape = {1};
  op->request.group = group;
  op->request.group_size = size;
  return op;
}

std::string names(const std::vector<OperationPtr>& ops) {
  std::string all;
  for (const auto& op : ops) all += op->request.name + ' ';
  return all;
}

OperationPtr bad(const std::string& name) {
  auto op = member_of(name);
  op->request.kind = Kind::allreduce;
  op->request.dtype = DType::int32;
  op->request.op = ReduceOp::adasum;
  return op;
}

struct Rank {
  Submissions submissions{0, 2};
  bool wake = false;
  Status submit(const OperationPtr& op) { return submissions.submit(op, &wake); }
  std::string take_names() { return names(submissions.take()); }
};

}  // namespace

TEST_CASE("a group is handed on as a whole, in order, once its last member comes") {
  Rank rank;
  REQUIRE(rank.submit(member_of("a")).ok());
  REQUIRE(rank.submit(member_of("x", 0, "")).ok());
  REQUIRE(rank.submit(member_of("b")).ok());
  CHECK(rank.take_names() == "x ");
  REQUIRE(rank.submit(member_of("p", 2)).ok());  // another group, of another size
  rank.wake = false;
  REQUIRE(rank.submit(member_of("c")).ok());
  CHECK(rank.wake);
  CHECK(rank.take_names() == "a b c ");
  CHECK(rank.submit(member_of("p", 2)).message().find("still in flight") != std::string::npos);
}

TEST_CASE("unnamed members and others keep their numbers apart; a group that is refused uses none up") {
  Rank rank;
  auto number = [&](const OperationPtr& op) {
    REQUIRE(rank.submit(op).ok());
    return op;
  };
  const auto first = number(member_of("", 2));
  const auto alone = number(member_of("", 0, ""));
  const auto second = number(member_of("", 2));
  CHECK(alone->unnamed_number == 0);
  CHECK(first->unnamed_number == 1);
  CHECK(second->unnamed_number == 2);
  CHECK(rank.submissions.take().size() == 3);
  REQUIRE(rank.submit(member_of("", 3, "u")).ok());
  auto wrong = bad("");
  wrong->request.group = "u";
  CHECK(!rank.submit(wrong).ok());
  CHECK(number(member_of("", 0, ""))->unnamed_number == 3);
}

TEST_CASE("a member that is refused refuses its group, for a caller that goes on and for one that begins anew") {
  Rank rank;
  const auto a = member_of("a");
  REQUIRE(rank.submit(a).ok());
  const Status why = rank.submit(bad("b"));
  CHECK(why.code() == Code::invalid_argument);
  REQUIRE(a->done());
  CHECK(a->status().code() == Code::invalid_argument);
  CHECK(a->status().message().find("group 'g'") != std::string::npos);
  SUBCASE("goes on") {
    const Status last = rank.submit(member_of("c"));
    CHECK(last.message().find("Adasum") != std::string::npos);
    CHECK(rank.take_names() == "");
  }
  SUBCASE("begins anew") {}
  SUBCASE("begins anew with the one that was refused") {
    CHECK(!rank.submit(bad("b")).ok());
    CHECK(!rank.submit(member_of("c")).ok());
    CHECK(!rank.submit(member_of("d")).ok());
  }
  for (const char* name : {"a", "b", "c"}) REQUIRE(rank.submit(member_of(name)).ok());
  CHECK(rank.take_names() == "a b c ");
}

TEST_CASE("who waits for a member of an incomplete group gets it announced, in the end") {
  Rank rank;
  const auto a = member_of("a");
  REQUIRE(rank.submit(a).ok());
  CHECK(!rank.submissions.nudge(*a, false));
  CHECK(rank.take_names() == "");
  CHECK(rank.submissions.nudge(*a, true));
  CHECK(rank.take_names() == "a ");
  CHECK(!rank.submissions.nudge(*a, true));
  bool waiting = true;
  CHECK(!rank.submissions.nudge_unattended(0, 0, &waiting));
  CHECK(!waiting);
  const auto b = member_of("b", 3, "h");
  b->on_done = [](Operation&, void*) {};
  REQUIRE(rank.submit(b).ok());
  CHECK(!rank.submissions.nudge_unattended(0, 1000, &waiting));
  CHECK(waiting);
  CHECK(rank.submissions.nudge_unattended(0, 0, &waiting));
  CHECK(rank.take_names() == "b ");
}

TEST_CASE("the end of the job reaches members of incomplete groups") {
  Rank rank;
  REQUIRE(rank.submit(member_of("a")).ok());
  CHECK(names(rank.submissions.end(Status(Code::shutdown, "over"))) == "a ");
  CHECK(rank.submit(member_of("b")).code() == Code::shutdown);
}
