// Random jobs (jobs.h) on whole engines, with threads, data and random timing; every element of every result
// is checked on every rank. A hang fails with each rank's position and the stacks of all threads.
#pragma once
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "collectives/elements.h"
#include "harness_engine.h"
#include "jobs.h"
#include "stacks.h"

namespace hvd::testing {

inline double number(const char* variable, double otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atof(text) : otherwise;
}

// ---- values: small whole numbers, so that sums are exact in every type --------------------------------------------------------
inline double value_of(int op, int use, int rank, int64_t i) { return static_cast<double>((op * 7 + use * 3 + rank * 5 + i) % 40); }

inline void put_value(DType d, std::byte* p, size_t i, double x) {
  if (is_float(d)) return put_float(d, p, i, x);
  if (d == DType::uint8) return put(p, i, static_cast<uint8_t>(x));
  d == DType::int32 ? put(p, i, static_cast<int32_t>(x)) : put(p, i, static_cast<int64_t>(x));
}
inline double get_value(DType d, const std::byte* p, size_t i) {
  if (is_float(d)) return get_float(d, p, i);
  if (d == DType::uint8) return get<uint8_t>(p, i);
  return d == DType::int32 ? get<int32_t>(p, i) : static_cast<double>(get<int64_t>(p, i));
}

inline int64_t row_of(const Request& q) {
  int64_t n = 1;
  for (size_t i = 1; i < q.shape.size(); ++i) n *= q.shape[i];
  return n;
}

inline std::vector<std::byte> input_of(const Request& q, int op, int use, int rank) {
  std::vector<std::byte> data(q.bytes());
  for (int64_t i = 0; q.kind != Kind::barrier && i < q.elements(); ++i)
    put_value(q.dtype, data.data(), static_cast<size_t>(i), value_of(op, use, rank, i));
  return data;
}

// The expected result of one use of an operation on one rank.
class Expectation {
 public:
  // `makers`: the ranks that make this use of it; the others have joined.
  Expectation(const Job& job, int op, int use, std::vector<int> makers)
      : p_(job.table[static_cast<size_t>(op)]), op_(op), use_(use), makers_(std::move(makers)) {}

  bool error() const {
    const bool all = makers_.size() == p_.ranks.size();
    return p_.disagreed || (!all && (p_.like.kind != Kind::allreduce || p_.like.set != 0));
  }
  // "" or the error in the result of `rank`.
  std::string check(int rank, const Task& task) const {
    const Request& q = p_.like;
    const size_t me = static_cast<size_t>(std::find(p_.ranks.begin(), p_.ranks.end(), rank) - p_.ranks.begin());
    const int64_t row = row_of(q);
    at_ = 0;
    wrong_.clear();
    switch (q.kind) {
      case Kind::allreduce: expect(task, q.elements(), [&](int64_t i) { return reduced(i); }); break;
      case Kind::broadcast: expect(task, q.elements(), [&](int64_t i) { return value_of(op_, use_, q.root, i); }); break;
      case Kind::allgather:
        for (int r : p_.ranks) expect(task, p_.rows(r) * row, [&](int64_t i) { return value_of(op_, use_, r, i); });
        break;
      case Kind::alltoall:
        for (int r : p_.ranks) {
          int64_t before = 0;
          for (size_t to = 0; to < me; ++to) before += p_.split(r, to);
          expect(task, p_.split(r, me) * row, [&](int64_t i) { return value_of(op_, use_, r, before * row + i); });
        }
        break;
      case Kind::reducescatter: {
        const auto n = static_cast<int64_t>(p_.ranks.size()), rows = q.shape[0], index = static_cast<int64_t>(me);
        const int64_t first = rows / n * index + std::min(index, rows % n);
        expect(task, (rows / n + (index < rows % n)) * row, [&](int64_t i) { return reduced(first * row + i); });
        break;
      }
      default: break;
    }
    return wrong_;
  }

 private:
  double reduced(int64_t i) const {
    double sum = 0, most = 0;
    for (int r : makers_) {
      sum += value_of(op_, use_, r, i);
      most = std::max(most, value_of(op_, use_, r, i));
    }
    if (p_.like.op == ReduceOp::max) return most;
    if (p_.like.op != ReduceOp::average) return p_.like.prescale * sum;
    const double mean = p_.like.prescale * sum / static_cast<double>(p_.ranks.size());
    return is_float(p_.like.dtype) ? mean : std::trunc(mean);
  }
  template <class Want>
  void expect(const Task& task, int64_t count, Want want) const {
    const double tolerance = p_.like.wire == WireFormat::int8   ? 8
                             : p_.like.wire != WireFormat::none ? 1
                             : is_float(p_.like.dtype)          ? 0.07
                                                                : 0;
    for (int64_t i = 0; i < count && wrong_.empty(); ++i, ++at_) {
      const double got = get_value(p_.like.dtype, task.out.data(), at_);
      if (std::abs(got - want(i)) > tolerance) {
        wrong_ = "element " + std::to_string(at_) + " is " + std::to_string(got) + " instead of " + std::to_string(want(i));
      }
    }
  }

  const Planned& p_;
  int op_, use_;
  std::vector<int> makers_;
  mutable size_t at_ = 0;
  mutable std::string wrong_;
};

// ---- running --------------------------------------------------------------------------------------------------------------
struct Run {
  const Job& job;
  EngineWorld& world;
  uint64_t seed;
  std::vector<std::vector<std::vector<int>>> uses;  // [lane][rank][operation]: how often it is made
  std::vector<std::vector<std::atomic<size_t>>> at;  // [lane][rank]: line of the script
  std::atomic<bool> reported{false};

  Run(const Job& j, EngineWorld& w, uint64_t s) : job(j), world(w), seed(s), at(j.scripts.size()) {
    for (const auto& lane : job.scripts) {
      auto& counts = uses.emplace_back(lane.size(), std::vector<int>(job.table.size()));
      for (size_t r = 0; r < lane.size(); ++r) {
        for (const Line& line : lane[r]) counts[r][static_cast<size_t>(line.op)] += line.what == Line::submit;
      }
    }
    for (auto& ranks : at) ranks = std::vector<std::atomic<size_t>>(static_cast<size_t>(w.size()));
  }
  std::vector<int> makers(size_t lane, int op, int use) const {
    std::vector<int> ranks;
    for (int r = 0; r < world.size(); ++r) {
      // If ranks disagree, one of the two operations is that of the other ranks.
      if (uses[lane][static_cast<size_t>(r)][static_cast<size_t>(op)] > use) ranks.push_back(r);
    }
    return ranks;
  }
  std::string line_text(size_t lane, int rank, size_t i) const {
    const Script& script = job.scripts[lane][static_cast<size_t>(rank)];
    if (i >= script.size()) return "the end";
    const Request& q = job.table[static_cast<size_t>(script[i].op)].like;
    return std::string(script[i].what == Line::submit ? "submits " : "waits for ") + name_of(q.kind) + " '" + q.name + "'" +
           (q.set ? " in set " + std::to_string(q.set) : "") + (q.group_size ? " of group '" + q.group + "'" : "");
  }
  // Reports the positions of all ranks in a hang.
  void report() {
    if (reported.exchange(true)) return;
    std::string text = "hang; seed " + std::to_string(seed) + "\n";
    for (size_t lane = 0; lane < at.size(); ++lane) {
      for (int r = 0; r < world.size(); ++r) {
        const size_t i = at[lane][static_cast<size_t>(r)];
        text += "rank " + std::to_string(r) + ", thread " + std::to_string(lane) + " " + line_text(lane, r, i) + " (line " +
                std::to_string(i) + " of " + std::to_string(job.scripts[lane][static_cast<size_t>(r)].size()) + ")\n";
      }
    }
    std::cerr << text << all_stacks() << std::endl;
  }
};

// Memory of a rank's tensors: host memory by default.
class TensorMemory {
 public:
  explicit TensorMemory(Program& program) : p_(program) {}
  virtual ~TensorMemory() = default;
  virtual TaskPtr submit(Request q, const std::vector<std::byte>& data) { return p_.submit(std::move(q), data); }
  // Submits a finished operation's request again. False: a new submission is needed.
  virtual bool again(Task& task, const std::vector<std::byte>& data) {
    task.in = data;
    task.out.assign(std::max<size_t>(data.size(), 1), std::byte{});
    const Status s = p_.engine.submit_again(&task.op, task.in.data(), task.out.data(), false);
    require(s.ok(), "again '" + task.name + "': " + s.message());
    return true;
  }
  // The status; the result is in task.out.
  virtual Status finish(Task& task) { return p_.finish(task); }

 protected:
  Program& p_;
};

// One thread of one rank.
class Lane {
 public:
  Lane(Run& run, Program& program, TensorMemory& memory, size_t lane)
      : run_(run), p_(program), memory_(memory), lane_(lane), random_(run.seed * 977 + static_cast<uint64_t>(program.rank) * 31 + lane) {}

  void play() {
    const Script& script = run_.job.scripts[lane_][static_cast<size_t>(p_.rank)];
    for (size_t i = 0; i < script.size(); ++i) {
      run_.at[lane_][static_cast<size_t>(p_.rank)] = i;
      hesitate();
      script[i].what == Line::submit ? submit(script[i].op) : wait(script[i].op);
    }
    run_.at[lane_][static_cast<size_t>(p_.rank)] = script.size();
  }

 private:
  struct Mine {
    TaskPtr task;
    int use = 0;
  };
  // A Python program is slow and sometimes computes: engines may take turns between any two operations.
  void hesitate() {
    if (random_() % 40 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 700));
    if (random_() % pace_) return;
    for (const Deadline until = Deadline::after(static_cast<double>(random_() % 60) * 1e-6); !until.passed();) {
    }
  }
  void submit(int op) {
    Mine& own = ops_[op];
    Request q = run_.job.table[static_cast<size_t>(op)].request_on(p_.rank);
    const std::vector<std::byte> data = input_of(q, op, own.use, p_.rank);
    if (!own.task || random_() % 2 || !memory_.again(*own.task, data)) own.task = memory_.submit(std::move(q), data);
    ++own.use;
  }
  void wait(int op) {
    Mine& own = ops_[op];
    const Deadline patience = Deadline::after(number("HVD_PATIENCE", 60));
    const bool polls = random_() % 4 == 0;
    while (polls ? !p_.engine.poll(*own.task->op) : !p_.engine.wait(*own.task->op, Deadline::after(1))) {
      if (polls) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (!patience.passed()) continue;
      run_.report();
      throw std::runtime_error("hangs: " + run_.line_text(lane_, p_.rank, run_.at[lane_][static_cast<size_t>(p_.rank)]));
    }
    const Status s = memory_.finish(*own.task);
    const Kind kind = run_.job.table[static_cast<size_t>(op)].like.kind;
    const Expectation expectation(run_.job, op, own.use - 1, run_.makers(lane_, op, own.use - 1));
    const std::string what =
        std::string(name_of(kind)) + " " + std::to_string(op) + " '" + own.task->name + "', use " + std::to_string(own.use - 1) + ": ";
    if (expectation.error()) {
      require(s.code() == Code::mismatch, what + "no error");
    } else {
      require(s.ok(), what + s.message());
      const std::string wrong = expectation.check(p_.rank, *own.task);
      require(wrong.empty(), what + wrong);
    }
  }

  Run& run_;
  Program& p_;
  TensorMemory& memory_;
  size_t lane_;
  std::mt19937_64 random_;
  const uint64_t pace_ = 1 + random_() % 12;
  std::map<int, Mine> ops_;
};

inline void play_rank(Run& run, Program& program, TensorMemory& memory) {
  std::mutex mutex;
  std::string wrong;
  std::vector<std::thread> threads;
  for (size_t lane = 0; lane < run.job.scripts.size(); ++lane) {
    threads.emplace_back([&, lane] {
      try {
        Lane(run, program, memory, lane).play();
      } catch (const std::exception& e) {
        const std::lock_guard lock(mutex);
        wrong += std::string(e.what()) + "; ";
      }
    });
  }
  for (auto& t : threads) t.join();
  require(wrong.empty(), wrong);
}

}  // namespace hvd::testing
