#include "plan/topology.h"

#include <doctest/doctest.h>

using namespace hvd;

namespace {

Topology make(int rank, std::vector<int> host_of) {
  Topology t;
  const Status s = Topology::make(rank, host_of, &t);
  REQUIRE_MESSAGE(s.ok(), s.message());
  return t;
}

using Ranks = std::vector<int>;

}  // namespace

TEST_CASE("two hosts with two ranks each") {
  const Topology t = make(3, {7, 7, 5, 5});
  CHECK(t.hosts() == 2);
  CHECK(t.host == Ranks{0, 0, 1, 1});
  CHECK(t.local_members() == Ranks{2, 3});
  CHECK(t.local_rank == 1);
  CHECK(t.local_size == 2);
  CHECK(t.cross_rank == 1);
  CHECK(t.cross_size == 2);
  CHECK(t.cross_members() == Ranks{1, 3});
  CHECK(t.slices == 2);
  CHECK(t.is_homogeneous());
  CHECK(t.nested());
}

TEST_CASE("ranks placed round robin on hosts of different sizes") {
  const std::vector<int> hosts = {0, 1, 2, 0, 1, 0};
  const Topology last = make(5, hosts);  // third member of host 0
  CHECK(last.local_rank == 2);
  CHECK(last.cross_size == 1);
  CHECK(last.cross_rank == 0);
  CHECK(last.slices == 1);
  CHECK(last.cross_members().empty());
  CHECK_FALSE(last.is_homogeneous());
  const Topology second = make(4, hosts);
  CHECK(second.local_rank == 1);
  CHECK(second.cross_rank == 1);
  CHECK(second.cross_size == 2);
  CHECK(second.cross_members().empty());  // host 2 has no counterpart
  CHECK(make(2, hosts).cross_members() == Ranks{0, 1, 2});
}

TEST_CASE("one host, and one rank a host, are not nested") {
  CHECK_FALSE(make(0, {4, 4, 4}).nested());
  CHECK_FALSE(make(0, {0, 1, 2}).nested());
  CHECK(make(0, {0, 1, 1}).nested());
  CHECK_FALSE(make(0, {0}).nested());
  CHECK(make(0, {0, 1, 2}).is_homogeneous());
}

TEST_CASE("the members of a process set, in set order") {
  const Topology world = make(3, {0, 0, 1, 1, 2});
  Topology set;
  REQUIRE(world.subset(Ranks{4, 3, 0, 1}, &set).ok());
  CHECK(set.rank == 1);
  CHECK(set.size == 4);
  CHECK(set.host == Ranks{0, 1, 2, 2});
  CHECK(set.local_members() == Ranks{1});
  CHECK(set.slices == 1);
  CHECK(set.cross_members() == Ranks{0, 1, 2});
}

TEST_CASE("errors name the value and what is accepted") {
  Topology t;
  CHECK(Topology::make(2, Ranks{0, 0}, &t).message() == "rank must be at least 0 and less than the number of ranks (2), got 2");
  CHECK(Topology::make(0, Ranks{}, &t).code() == Code::invalid_argument);
  const Topology world = make(0, {0, 0, 1});
  CHECK(world.subset(Ranks{1, 2}, &t).message() == "rank 0 is not a member of the process set");
  CHECK(world.subset(Ranks{0, 3}, &t).message() == "process set with rank 3 in a world of 3");
  CHECK(world.subset(Ranks{0, 0}, &t).message() == "process set with rank 0 twice");
}
