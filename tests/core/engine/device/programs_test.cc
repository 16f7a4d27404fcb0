// Random programs of ranks with a GPU each: operations of all kinds on GPUs and on CPUs, named and not, on sets that come and go, in an
// order that repeats for a while, at times of each rank's own, with ranks that join. Every element of every result is checked on every
// rank.
//   HVD_STRESS_ROUNDS: how many (default 2); SIMCUDA_SEED: the seed of the first, and of the simulated driver's delays
#include <doctest/doctest.h>

#include <cstdlib>
#include <numeric>
#include <random>

#include "engine/device/nccl.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

struct Set {
  uint32_t id = 0;
  std::vector<int> ranks;
  size_t size() const { return ranks.size(); }
  // The rank's place among the members; size() for others.
  size_t place(int rank) const { return static_cast<size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin()); }
};

// One operation, the same on all members of its set.
struct Planned {
  Request request;
  bool on_cpu = false;
  size_t set = 0;         // by index
  float expected = 0;     // each element of the result, where each element of each rank is 1
  bool scattered = false;  // the result is this rank's part
};

std::vector<std::byte> ones(size_t n) { return Program::bytes_of(std::vector<float>(n, 1)); }

// What every rank draws alike. Empty tensors, small ones, some that go in pieces.
Planned draw(std::mt19937& common, const std::vector<Set>& sets, const std::string& name) {
  Planned p;
  p.set = common() % sets.size();
  const Set& set = sets[p.set];
  const auto members = static_cast<float>(set.size());
  const unsigned what = common() % 8;
  size_t n = common() % 4 == 0 ? 0 : common() % 12 == 0 ? (4 << 20) / 4 + 7 : common() % 3000;
  if (what == 0) n = 5;
  const std::string called = common() % 5 == 0 ? "" : name;
  p.expected = members;
  switch (what) {
    case 0:
      p.on_cpu = true;
      p.request = of_floats(Kind::allreduce, "cpu." + name, n);
      break;
    case 1:
      p.request = of_floats(Kind::broadcast, called, n);
      p.request.root = set.ranks.back();
      p.expected = 1;
      break;
    case 2:
      n = std::max(n, set.size());  // each has a row
      p.request = of_floats(Kind::reducescatter, called, n);
      p.scattered = true;
      break;
    case 3:
      p.request = of_floats(Kind::allgather, called, n);
      p.expected = 1;
      break;
    case 4:
      p.request = of_floats(Kind::allreduce, called, n, ReduceOp::average);
      p.expected = 1;
      break;
    case 5:
      p.request = of_floats(Kind::allreduce, called, n);
      p.request.prescale = 0.5;
      p.expected = members / 2;
      break;
    default: p.request = of_floats(Kind::allreduce, called, n);
  }
  p.request.set = set.id;
  return p;
}

class Rank {
 public:
  Rank(Program& program, unsigned seed) : p_(program), g_(program), common_(seed), mine_(seed * 31 + static_cast<unsigned>(program.rank)) {
    std::vector<int> all(static_cast<size_t>(p_.size));
    std::iota(all.begin(), all.end(), 0);
    sets_.push_back({0, all});
  }

  void step(int number) {
    std::vector<Planned> plan;
    const std::string series = common_() % 2 ? "p" : "q";
    for (int left = 1 + static_cast<int>(common_() % 8); left > 0; --left)
      plan.push_back(draw(common_, sets_, series + std::to_string(left)));
    std::vector<std::pair<size_t, OnGpu>> on_gpu;
    std::vector<std::pair<size_t, TaskPtr>> on_cpu;
    for (size_t i = 0; i < plan.size(); ++i) {
      const Planned& one = plan[i];
      const Set& set = sets_[one.set];
      const size_t me = set.place(p_.rank), n = static_cast<size_t>(one.request.shape[0]);
      if (me == set.size()) continue;
      if (mine_() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(mine_() % 300));
      if (one.on_cpu) {
        on_cpu.emplace_back(i, p_.submit(one.request, ones(n)));
      } else {
        const size_t rows = n / set.size() + (me < n % set.size());
        on_gpu.emplace_back(i, g_.submit(one.request, ones(n), one.scattered ? rows * sizeof(float) : 0));
      }
    }
    const auto wrong = [&](size_t i) {
      return "step " + std::to_string(number) + ", " + name_of(plan[i].request.kind) + " '" + plan[i].request.name + "'";
    };
    const auto check_cpu = [&] {
      for (auto& [i, task] : on_cpu) {
        p_.wait(*task);
        p_.expect(task->at<float>(0) == plan[i].expected, wrong(i));
      }
    };
    const bool first = mine_() % 2;
    if (first) check_cpu();
    std::shuffle(on_gpu.begin(), on_gpu.end(), mine_);
    for (auto& [i, task] : on_gpu) {
      const std::vector<float> got = g_.values<float>(task);
      p_.expect(std::all_of(got.begin(), got.end(), [&, i = i](float x) { return x == plan[i].expected; }), wrong(i));
    }
    if (!first) check_cpu();
    change();
  }

 private:
  // Sets come and go; ranks join, one after it has worked alone.
  void change() {
    const unsigned what = common_() % 10;
    if (what < 2 && sets_.size() < 4 && p_.size > 2) {
      Set set;
      for (int r = 0; r < p_.size; ++r) {
        if (common_() % 2) set.ranks.push_back(r);
      }
      const bool known = std::any_of(sets_.begin(), sets_.end(), [&](const Set& other) { return other.ranks == set.ranks; });
      if (set.ranks.empty() || known) return;
      set.id = p_.add_set(set.ranks);
      sets_.push_back(set);
    } else if (what == 2 && sets_.size() > 1) {
      p_.expect(p_.remove_set(sets_.back().id), "a set is not removed");
      sets_.pop_back();
    } else if (what == 3) {
      if (p_.rank == static_cast<int>(common_() % static_cast<unsigned>(p_.size))) {
        for (int i = 0; i < 3; ++i) {
          OnGpu task = g_.submit(of_floats(Kind::allreduce, "alone" + std::to_string(i), 40), ones(40));
          (void)g_.values<float>(task);
        }
      }
      p_.expect(p_.last_joined() >= 0, "join");
    }
  }

  Program& p_;
  GpuProgram g_;
  std::mt19937 common_, mine_;
  std::vector<Set> sets_;
};

}  // namespace

TEST_CASE("random programs, by NCCL and by way of the host") {
  const auto first = static_cast<unsigned>(number("SIMCUDA_SEED", 1)) * 1000;
  for (unsigned seed = first; seed < first + static_cast<unsigned>(number("HVD_STRESS_ROUNDS", 2)); ++seed) {
    CAPTURE(seed);
    std::mt19937 choose(seed);
    const int size = 2 + static_cast<int>(choose() % 3);
    const auto layout = static_cast<Layout>(choose() % 3);
    EngineWorld world(size, choose() % 4 ? with_nccl(layout) : on_gpus(layout));
    const std::string wrong = run(world, [&](Program& p) {
      p.patience = 60;
      Rank rank(p, seed + 7);
      for (int step = 0; step < 30; ++step) rank.step(step);
    });
    CHECK(wrong == "");
  }
}

TEST_CASE("sets come and go while the world works by NCCL") {
  EngineWorld world(4, with_nccl(Layout::one_node));
  const std::string wrong = run(world, [](Program& p) {
    GpuProgram g(p);
    until_by_nccl(p, g);
    for (int round = 0; round < 2 * number("HVD_STRESS_ROUNDS", 2); ++round) {
      std::vector<Set> sets{{0, {0, 1}}, {0, {1, 2, 3}}, {0, {0, 3}}};
      for (Set& set : sets) set.id = p.add_set(set.ranks);
      for (int step = 0; step < 12; ++step) {
        std::vector<std::pair<OnGpu, size_t>> tasks;
        for (int i = 0; i < 3; ++i) tasks.emplace_back(g.submit(of_floats(Kind::allreduce, "w" + std::to_string(i), 20), ones(20)), 4);
        for (size_t s = 0; s < sets.size(); ++s) {
          if (sets[s].place(p.rank) == sets[s].size()) continue;
          Request q = of_floats(Kind::allreduce, "s" + std::to_string(s), 30);
          q.set = sets[s].id;
          tasks.emplace_back(g.submit(q, ones(30)), sets[s].size());
        }
        for (auto& [task, members] : tasks) {
          const std::vector<float> got = g.values<float>(task);
          p.expect(got == std::vector<float>(got.size(), static_cast<float>(members)), "round " + std::to_string(round));
        }
      }
      for (const Set& set : sets) p.expect(p.remove_set(set.id), "a set is not removed");
    }
  });
  CHECK(wrong == "");
}
