// Adasum through whole engines, on one node and several: fused, in schedules, with joined ranks.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

using Floats = std::vector<float>;
constexpr int64_t kSizes[] = {3, 256, 1, 5000};
constexpr int kSteps = 8;

Floats random_floats(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats x(n);
  for (float& v : x) v = normal(random);
  return x;
}
Floats contribution(int step, size_t t, int rank) { return random_floats(kSizes[t], static_cast<uint64_t>(step * 1000 + rank * 10) + t); }

// Of a and b, by the definition, in double.
std::vector<double> pair_of(const std::vector<double>& a, const std::vector<double>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  std::vector<double> r(a.size());
  for (size_t i = 0; i < a.size(); ++i) r[i] = aa == 0 || bb == 0 ? a[i] + b[i] : (1 - ab / (2 * aa)) * a[i] + (1 - ab / (2 * bb)) * b[i];
  return r;
}

std::vector<double> expected(std::vector<std::vector<double>> x) {
  for (; x.size() > 1; x.resize(x.size() / 2)) {
    for (size_t i = 0; i + 1 < x.size(); i += 2) x[i / 2] = pair_of(x[i], x[i + 1]);
  }
  return x[0];
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

// Steps of four tensors; all results, one after the other.
Floats train(Program& p) {
  Floats all;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<TaskPtr> tasks;
    for (size_t t = 0; t < std::size(kSizes); ++t) tasks.push_back(adasum_async(p, "t" + std::to_string(t), contribution(step, t, p.rank)));
    for (auto& task : tasks) {
      const Floats x = result(p, *task);
      all.insert(all.end(), x.begin(), x.end());
    }
  }
  return all;
}

void check_results(const Floats& got, int size) {
  size_t at = 0, wrong = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (size_t t = 0; t < std::size(kSizes); ++t) {
      std::vector<std::vector<double>> in;
      for (int r = 0; r < size; ++r) {
        const Floats x = contribution(step, t, r);
        in.emplace_back(x.begin(), x.end());
      }
      for (double want : expected(in)) wrong += !(std::abs(got[at++] - want) <= 1e-5 * (1 + std::abs(want)));
    }
  }
  CHECK(wrong == 0);
}

std::vector<Floats> train_everywhere(int size, const Given& given, Engine::Stats* stats = nullptr) {
  EngineWorld world(size, given);
  std::vector<Floats> results(size);
  CHECK(run(world, [&](Program& p) { results[p.rank] = train(p); }) == "");
  if (stats) *stats = world.stats();
  return results;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST_CASE("Adasum: by its definition, with the same bits on all ranks and layouts, fused or not, with and without a schedule") {
  for (int size : {2, 4, 8}) {
    Floats first;
    for (Layout layout : kLayouts) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      Settings plain = crowded(), unfused = crowded();
      unfused.fusion_threshold = 0;
      unfused.cache_capacity = 0;
      Engine::Stats stats;
      const auto fused = train_everywhere(size, {layout, plain}, &stats), apart = train_everywhere(size, {layout, unfused});
      CHECK(stats.scheduled > 0);
      CHECK(stats.fused > 0);
      if (first.empty()) {
        first = fused[0];
        check_results(first, size);
      }
      for (int r = 0; r < size; ++r) {
        CHECK(same_bits(fused[r], first));
        CHECK(same_bits(apart[r], first));
      }
    }
  }
}

TEST_CASE("Adasum: ranks that have joined count as zeros; sets may be smaller than the world") {
  for (Layout layout : kLayouts) {
    EngineWorld world(4, {layout, crowded()});
    CHECK(run(world, [&](Program& p) {
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
    }) == "");
  }
}

TEST_CASE("Adasum is refused for other types than floats, sizes that are no power of two, and beside ranks with another op") {
  EngineWorld world(3, {Layout::one_node, crowded()});
  CHECK(run(world, [&](Program& p) {
    auto refused = [&](DType d, const char* part) {
      Request q = Program::request(Kind::allreduce, "a", {2}, d);
      q.op = ReduceOp::adasum;
      TaskPtr t;
      const Status s = p.try_submit(std::move(q), std::vector<std::byte>(16), &t);
      p.expect(s.code() == Code::invalid_argument && s.message().find(part) != std::string::npos, s.message());
    };
    refused(DType::int32, "op Adasum is not defined for dtype int32");
    refused(DType::boolean, "op Adasum is not defined for dtype bool");
    refused(DType::float32, "3 ranks; accepted: a power of two");
    Request q = Program::request(Kind::reducescatter, "r", {3}, DType::float32);
    q.op = ReduceOp::adasum;
    TaskPtr t;
    p.expect(p.try_submit(std::move(q), std::vector<std::byte>(16), &t).message().find("Adasum is not supported") != std::string::npos,
             "reducescatter");
    const uint32_t set = p.add_set({0, 1});
    if (p.rank == 2) return;
    q = Program::request(Kind::allreduce, "x", {1}, DType::float32);
    q.set = set;
    q.op = p.rank == 0 ? ReduceOp::adasum : ReduceOp::sum;
    const Status s = p.finish(*p.submit(std::move(q), std::vector<std::byte>(4)));
    p.expect(s.code() == Code::mismatch && s.message().find("Adasum") != std::string::npos, s.message());
  }) == "");
}
