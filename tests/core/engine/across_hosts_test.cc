// Reductions among ranks with the same local rank on their hosts.
#include <doctest/doctest.h>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Sums 100 * rank + i for each part; a rank with a part gets the sum over the corresponding ranks of all
// hosts.
void sums(Program& p, const std::vector<int>& nodes) {
  Request q = Program::request(Kind::allreduce, "part", {1000});
  q.across_hosts = true;
  const auto place = [&nodes](int rank) { return std::count(nodes.begin(), nodes.begin() + rank, nodes[rank]); };
  const int hosts = nodes.back() + 1;
  int expected = 0, alike = 0;
  for (int r = 0; r < p.size; ++r) {
    if (place(r) == place(p.rank)) expected += 100 * r, ++alike;
  }
  for (int repeat = 0; repeat < 20; ++repeat) {
    TaskPtr t = p.submit(q, Program::bytes_of(std::vector<int32_t>(1000, 100 * p.rank)));
    p.wait(*t);
    if (alike == hosts) {  // otherwise a host has fewer ranks, and no rank reduces this part
      p.equal(t->at<int32_t>(0), expected, "first element");
      p.equal(t->at<int32_t>(999), expected, "last element");
    }
    p.equal(p.sum("whole", p.rank, 10), total(p.size) - p.size, "an ordinary reduction beside it");
  }
}

}  // namespace

TEST_CASE("each rank reduces with those that have its place on the other hosts") {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1, 1}, {0, 1, 1, 0, 2, 2}, {0, 0, 0, 1, 1}}) {
    CAPTURE(nodes.size());
    EngineWorld world(static_cast<int>(nodes.size()), {.nodes = nodes});
    CHECK(run(world, [&nodes](Program& p) { sums(p, nodes); }) == "");
  }
}

TEST_CASE("the mean is over all ranks: each part is a sum of its host's already") {
  check_ranks(4, {.layout = Layout::pairs}, [](Program& p) {
    Request q = Program::request(Kind::allreduce, "part", {3});
    q.across_hosts = true;
    q.op = ReduceOp::average;
    q.dtype = DType::float32;
    TaskPtr t = p.submit(q, Program::bytes_of(std::vector<float>(3, p.rank < 2 ? 6.0f : 2.0f)));
    p.wait(*t);
    p.equal(t->at<float>(2), 2.0f, "mean");
  });
}
