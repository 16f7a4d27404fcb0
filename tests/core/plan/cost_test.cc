#include "plan/cost.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace hvd;

namespace {

WorldShape world(int size, int hosts) {
  WorldShape w;
  w.size = size;
  w.hosts = hosts;
  w.nested = hosts > 1 && hosts < size;
  return w;
}

constexpr CostModel kUnits{.alpha = 1, .beta = 0.5, .gamma = 0.25, .local_alpha = 0.125, .local_beta = 0.0625};
constexpr auto kAllreduce = Collective::allreduce;

}  // namespace

TEST_CASE("every algorithm of the table has a cost and a formula; no other has") {
  for (int c = 0; c < kCollectiveCount; ++c) {
    for (int a = 0; a < kAlgorithmCount; ++a) {
      const auto collective = static_cast<Collective>(c);
      const auto algorithm = static_cast<Algorithm>(a);
      const auto existing = algorithms_of(collective);
      const bool exists = std::find(existing.begin(), existing.end(), algorithm) != existing.end();
      const Cost* cost = cost_of(collective, algorithm);
      CHECK((cost != nullptr) == exists);
      if (!cost) continue;
      CHECK_FALSE(cost->formula.empty());
      CHECK(predict(collective, algorithm, world(1, 1), 1000) == 0);
      CHECK(predict(collective, algorithm, world(4, 2), 1000) > 0);
    }
  }
}

TEST_CASE("the formulas, worked out by hand for 8 bytes") {
  const size_t n = 8;
  CHECK(predict(kAllreduce, Algorithm::recursive_doubling, world(4, 4), n, kUnits) == doctest::Approx(2 * (1 + 8 * 0.75)));
  CHECK(predict(kAllreduce, Algorithm::recursive_doubling, world(5, 5), n, kUnits) == doctest::Approx(14 + 2 * (1 + 4) + 2));
  CHECK(predict(kAllreduce, Algorithm::rabenseifner, world(4, 4), n, kUnits) == doctest::Approx(4 + 6 * 1.25));
  CHECK(predict(kAllreduce, Algorithm::ring, world(4, 4), n, kUnits) == doctest::Approx(6 + 6 * 1.25));
  CHECK(predict(kAllreduce, Algorithm::naive, world(4, 4), n, kUnits) == doctest::Approx(3 * (1 + 8 * 0.75)));
  CHECK(predict(kAllreduce, Algorithm::driver, world(4, 4), n, kUnits) == doctest::Approx(3 * (2 + 8 * 1.25)));
  CHECK(predict(kAllreduce, Algorithm::tree, world(5, 5), n, kUnits) == doctest::Approx(3 * (2 + 8 * 1.25)));
  CHECK(predict(kAllreduce, Algorithm::shm, world(4, 1), n, kUnits) == doctest::Approx(0.25 + 8 * 0.375));
  // 2 hosts with 2 ranks: 4 bytes between the hosts, in one step of doubling.
  CHECK(predict(kAllreduce, Algorithm::hierarchical, world(4, 2), n, kUnits) == doctest::Approx(0.5 + 8 * 0.375 + 1 + 4 * 0.75));
  CHECK(predict(Collective::broadcast, Algorithm::tree, world(5, 5), n, kUnits) == doctest::Approx(3 * 5));
  CHECK(predict(Collective::barrier, Algorithm::dissemination, world(5, 5), 0, kUnits) == doctest::Approx(3));
  CHECK(predict(Collective::adasum, Algorithm::halving, world(4, 4), n, kUnits) == doctest::Approx(7 + 6 * 1.5));
  WorldShape host = world(4, 1);
  host.all_local = true;
  CHECK(predict(Collective::adasum, Algorithm::halving, host, n, kUnits) == doctest::Approx(7 * 0.125 + 6 * 0.75));
}
