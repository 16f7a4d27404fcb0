// Adasum in whole engines, on one node and several: in process sets, with joined ranks. Its bits:
// same_bits_test.cc.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

using Floats = std::vector<float>;

Floats random_floats(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// Adasum of a and b, by the definition, in double.
std::vector<double> pair_of(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  std::vector<double> r(a.size());
  for (size_t i = 0; i < a.size(); ++i) r[i] = aa == 0 || bb == 0 ? a[i] + b[i] : (1 - ab / (2 * aa)) * a[i] + (1 - ab / (2 * bb)) * b[i];
  return r;
}

TaskPtr adasum_async(Program& p, const std::string& name, const Floats& x, uint32_t set = 0) {
  Request q = Program::request(Kind::allreduce, name, {static_cast<int64_t>(x.size())}, DType::float32);
  q.op = ReduceOp::adasum;
  q.set = set;
  return p.submit(std::move(q), Program::bytes_of(x));
}
Floats result(Program& p, Task& task) {
  p.wait(task);
  Floats x(task.in.size() / sizeof(float));
  std::memcpy(x.data(), task.out.data(), task.in.size());
  return x;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("Adasum: ranks that have joined count as zeros; sets may be smaller than the world") {
  for (Layout layout : kLayouts) {
    check_ranks(4, {layout, crowded()}, [&](Program& p) {
      const Floats x = random_floats(1000, static_cast<uint64_t>(p.rank));
      const uint32_t set = p.add_set({1, 2});
      if (p.rank == 1 || p.rank == 2) {
        const Floats in_set = result(p, *adasum_async(p, "in a set", x, set));
        const Floats one = random_floats(1000, 1), two = random_floats(1000, 2);
        const auto want = pair_of({one.begin(), one.end()}, {two.begin(), two.end()});
        for (size_t i = 0; i < want.size(); ++i)
          p.expect(std::abs(in_set[i] - want[i]) < 1e-5 * (1 + std::abs(want[i])), "the set's result");
      }
      if (p.rank == 3) {
        const Floats alone = result(p, *adasum_async(p, "alone", x));
        p.expect(same_bits(alone, x), "the only one left keeps its values");
      }
      p.last_joined();
    });
  }
}
