// Seeded random programs over floats, in all wire formats: whatever the timing, and with it fusion, schedules and the way into and out of
// them, every rank gets the same bits, and so does every run, without schedules as well. HVD_STRESS_ROUNDS: rounds for each world (default
// 15).
#include <doctest/doctest.h>

#include <cstdlib>
#include <random>

#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

constexpr DType kFloats[] = {DType::float32, DType::float32, DType::float16, DType::bfloat16, DType::float64};

int rounds() {
  const char* text = std::getenv("HVD_STRESS_ROUNDS");
  return text ? std::atoi(text) : 15;
}

class Hash {
 public:
  void mix(const std::byte* data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) value_ = (value_ ^ static_cast<uint64_t>(data[i])) * 0x100000001b3ull;  // FNV-1a
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325ull;
};

struct Hashes {
  Hash common;  // of results that are equal on all ranks
  Hash own;  // of other results, and of those of process sets
};

// Bytes of finite 16, 32 or 64 bit floats: exponents around one, any mantissa, both signs.
std::vector<std::byte> random_tensor(DType d, size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> some(-4, 4);
  std::vector<std::byte> out(n * size_of(d));
  for (size_t i = 0; i < n; ++i) {
    const double x = some(random);
    const auto f = static_cast<float>(x);
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    const auto half = static_cast<uint16_t>((random() & 0x83ff) | (random() % 6 + 12) << 10), brain = static_cast<uint16_t>(bits >> 16);
    std::byte* at = out.data() + i * size_of(d);
    if (d == DType::float64) std::memcpy(at, &x, 8);
    if (d == DType::float32) std::memcpy(at, &f, 4);
    if (d == DType::float16) std::memcpy(at, &half, 2);
    if (d == DType::bfloat16) std::memcpy(at, &brain, 2);
  }
  return out;
}

struct Pending {
  TaskPtr task;
  std::shared_ptr<Arena::Block> block;  // memory of the result if not in the task
  size_t bytes = 0;
  bool common = false;
};

// Of operations in int8, by (seed, index): they carry over from round to round.
using Residuals = std::map<std::pair<uint64_t, int>, std::vector<float>>;

// Operation `index` of a round is determined by (seed, index), so ranks agree without communication.
Pending submit_one(Program& p, uint64_t seed, int index, uint32_t set, const std::vector<int>& ranks, Residuals* residuals) {
  std::mt19937_64 random(seed * 1000003 + static_cast<uint64_t>(index));
  const DType d = kFloats[random() % 5];
  const size_t n = random() % (random() % 6 == 0 ? 30000 : 400);
  const size_t me = std::find(ranks.begin(), ranks.end(), p.rank) - ranks.begin();
  Request q = Program::request(Kind::allreduce, "op" + std::to_string(index), {static_cast<int64_t>(n)}, d);
  q.set = set;
  const uint64_t salt = seed * 977 + static_cast<uint64_t>(index) * 131 + static_cast<uint64_t>(p.rank);
  switch (random() % 9) {
    case 0:
      q.kind = Kind::broadcast;
      q.root = ranks[random() % ranks.size()];
      return {p.submit(q, random_tensor(d, n, salt)), nullptr, n * size_of(d), set == 0};
    case 1:
      q.kind = Kind::allgather;
      q.shape = {static_cast<int64_t>(n % 50 + me), 3};
      return {p.submit(q, random_tensor(d, 3 * (n % 50 + me), salt)), nullptr, 0, set == 0};
    case 2:
      q.kind = Kind::reducescatter;
      return {p.submit(q, random_tensor(d, n, salt)), nullptr, (n / ranks.size() + (me < n % ranks.size())) * size_of(d), false};
    case 3: {
      q.kind = Kind::alltoall;
      size_t rows = 0;
      for (size_t to = 0; to < ranks.size(); ++to) rows += static_cast<size_t>(q.splits.emplace_back((n + 7 * me + 3 * to) % 40));
      q.shape = {static_cast<int64_t>(rows)};
      return {p.submit(q, random_tensor(d, rows, salt)), nullptr, 0, false};
    }
    default: break;
  }
  q.op = random() % 4 == 0 ? ReduceOp::average : random() % 6 == 0 ? ReduceOp::max : ReduceOp::sum;
  if (random() % 3 == 0) q.prescale = 1.0 / 3;
  if (random() % 3 == 0) q.postscale = 0.7;
  if (d == DType::float32 && q.op != ReduceOp::max) q.wire = static_cast<WireFormat>(random() % 4);
  const bool power_of_two = (ranks.size() & (ranks.size() - 1)) == 0;
  if (random() % 6 == 0 && power_of_two && q.wire == WireFormat::none) q.op = ReduceOp::adasum;
  std::vector<float>* kept = q.wire == WireFormat::int8 ? &(*residuals)[{seed, index}] : nullptr;
  if (kept) kept->resize(n);
  auto task = std::make_shared<Task>();
  task->name = q.name;
  task->in = random_tensor(d, n, salt);
  task->out.resize(std::max<size_t>(task->in.size(), 1));
  const size_t bytes = task->in.size();
  auto block = random() % 3 == 0 ? p.engine.allocate(bytes) : nullptr;
  if (block) std::memcpy(block->data(), task->in.data(), bytes);
  const Status s = p.engine.submit(std::move(q), block ? block->data() : task->in.data(), block ? block->data() : task->out.data(),
                                   &task->op, kept ? kept->data() : nullptr);
  require(s.ok(), s.message());
  return {task, block, bytes, set == 0};
}

void collect(Program& p, Pending& one, Hashes* hashes) {
  p.wait(*one.task);
  const std::byte* result = one.block ? one.block->data() : one.task->out.data();
  const size_t bytes = one.task->op->output ? one.task->out.size() : one.bytes;
  (one.common ? hashes->common : hashes->own).mix(result, bytes);
}

// Ranks end at different times; the remaining ranks continue with zeros from the others.
void end_unevenly(Program& p, uint64_t seed, Hashes* hashes) {
  const uint64_t more = (seed + static_cast<uint64_t>(p.rank) * 5) % 4;
  for (uint64_t i = 0; i < more; ++i) {
    Request q = Program::request(Kind::allreduce, "late" + std::to_string(i), {777}, DType::float32);
    q.wire = static_cast<WireFormat>((seed + i) % 4);
    TaskPtr task = p.submit(q, random_tensor(DType::float32, 777, seed + i * 100 + static_cast<uint64_t>(p.rank)));
    p.wait(*task);
    hashes->own.mix(task->out.data(), task->out.size());
  }
  p.last_joined();
}

Hashes program(Program& p, uint64_t seed, uint64_t timing) {
  std::mt19937_64 common(seed), own(timing * 31 + static_cast<uint64_t>(p.rank));
  std::vector<int> all, some;
  for (int r = 0; r < p.size; ++r) {
    all.push_back(r);
    if (r % 2 == static_cast<int>(seed % 2)) some.push_back(r);
  }
  const uint32_t set = p.add_set(some);
  Hashes hashes;
  Residuals residuals;
  for (int round = 0; round < rounds(); ++round) {
    const uint64_t step = common() % 10 == 0 ? common() : seed;  // usually the same step again
    const int n = 2 + static_cast<int>(step % 11);
    std::vector<int> order;
    for (int i = 0; i < n; ++i) order.push_back(i);
    if (some.size() > 1 && std::find(some.begin(), some.end(), p.rank) != some.end()) order.push_back(100);
    if (round % 4 == 3) std::shuffle(order.begin(), order.end(), own);
    std::map<int, Pending> pending;
    for (int i : order) {
      pending[i] = i == 100 ? submit_one(p, step, i, set, some, &residuals) : submit_one(p, step, i, 0, all, &residuals);
      if (own() % 40 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 2000));
    }
    for (auto& [i, one] : pending) collect(p, one, &hashes);
    if (step % 5 == 0) p.barrier();
  }
  end_unevenly(p, seed, &hashes);
  return hashes;
}

std::vector<Hashes> run_once(Layout layout, int size, size_t threshold, uint64_t seed, uint64_t timing, bool schedules = true) {
  Settings settings = crowded();
  settings.fusion_threshold = threshold;
  settings.spins = timing % 2 ? 0 : 50;
  if (!schedules) settings.cache_capacity = 0;
  EngineWorld world(size, {layout, settings, {}, {}, 256 << 10, 4 << 20});
  std::vector<Hashes> hashes(size);
  REQUIRE(run(world, [&](Program& p) { hashes[p.rank] = program(p, seed, timing); }) == "");
  CHECK((world.stats().scheduled > 0) == schedules);
  return hashes;
}

}  // namespace

TEST_CASE("random programs over floats: the same bits on every rank and in every run") {
  uint64_t seed = 100;
  for (Layout layout : kLayouts) {
    for (int size : {2, 3, 5, 8}) {
      ++seed;
      CAPTURE(name_of(layout));
      CAPTURE(size);
      CAPTURE(seed);
      const auto first = run_once(layout, size, size_t{128} << 20, seed, 1);
      const auto others = {run_once(layout, size, 3000, seed, 2), run_once(layout, size, size_t{128} << 20, seed, 3, false)};
      for (int r = 0; r < size; ++r) {
        CAPTURE(r);
        CHECK(first[r].common.value() == first[0].common.value());
        for (const auto& other : others) {
          CHECK(other[r].common.value() == first[0].common.value());
          CHECK(other[r].own.value() == first[r].own.value());
        }
      }
    }
  }
}
