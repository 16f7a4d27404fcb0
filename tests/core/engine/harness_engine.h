// A world of engines in one process (wiring.h), with a thread for each rank.
#pragma once
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "agree/schedule.h"
#include "base/wire.h"
#include "engine/control.h"
#include "engine/engine.h"
#include "wiring.h"

namespace hvd::testing {

// Messages of a simulated root: schedule `id` of one barrier, which ends before its first round.
inline void announce_and_revoke(Control& root, uint64_t id) {
  Schedule schedule;
  schedule.id = id;
  schedule.entries.push_back({0, Kind::barrier, "b", false});
  Response barrier, adopt;
  barrier.kind = Kind::barrier;
  barrier.names = {"b"};
  barrier.shapes = {{}};
  schedule.buckets.push_back({{barrier}, {0}});
  adopt.kind = Kind::adopt_schedule;
  encode(schedule, &adopt.payload);
  std::string first, second;
  Writer(&first).put(uint64_t{0});
  encode(std::vector<Response>{adopt}, &first);
  Writer w(&second);
  w.put(id);
  w.put(uint64_t{0});
  root.broadcast(FrameType::responses, first);
  root.broadcast(FrameType::revoked, second);
}

// CPU time of this process so far.
inline double cpu_seconds() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

// True once this process has used almost no CPU time for half a second; on a busy machine, threads may have
// been about to sleep in the half second before.
inline bool sleeps(int tries) {
  while (tries-- > 0) {
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    if (cpu_seconds() - before < 0.005) return true;
  }
  return false;
}

class EngineWorld {
 public:
  explicit EngineWorld(int size, Setup setup = {}) : wiring_(size, setup), engines_(size) {
    for (int r = 0; r < size; ++r) {
      if (!Wiring::is_victim(setup, r)) engines_[r] = std::make_unique<Engine>(std::move(wiring_.options[r]));
    }
  }
  // Ranks leave together, as programs do: a single one would wait for the others' answers.
  ~EngineWorld() {
    std::vector<std::thread> threads;
    for (auto& e : engines_) {
      if (e) threads.emplace_back([&e] { e.reset(); });
    }
    for (auto& t : threads) t.join();
  }
  EngineWorld(const EngineWorld&) = delete;

  int size() const { return wiring_.size; }
  Engine& engine(int rank) { return *engines_[rank]; }
  const std::vector<int>& victim_fds(int rank) { return wiring_.victim_fds[rank]; }
  void kill_victims() { wiring_.kill_victims(); }
  void cut(int rank) { wiring_.cut(rank); }
  Engine::Stats stats(int rank = 0) { return engines_[rank]->stats(); }
  std::atomic<int> marks{0};  // see Program::mark

 private:
  Wiring wiring_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

// One operation and its memory, on one rank.
struct Task {
  OperationPtr op;
  std::string name;  // the engine may still change op->request
  std::vector<std::byte> in, out;
  template <class T>
  T at(size_t i) const {
    T x;
    std::memcpy(&x, out.data() + i * sizeof(T), sizeof(T));
    return x;
  }
};
using TaskPtr = std::shared_ptr<Task>;

// One rank's program. An unexpected result becomes an exception, which run() turns into that rank's result.
class Program {
 public:
  Program(EngineWorld& world, int rank) : rank(rank), size(world.size()), engine(world.engine(rank)), marks_(world.marks) {}
  const int rank, size;
  Engine& engine;
  double patience = 20;

  Status try_submit(Request q, std::vector<std::byte> in, TaskPtr* out, bool blocking = false) {
    auto task = std::make_shared<Task>();
    task->name = q.name;
    task->in = std::move(in);
    task->out.resize(std::max<size_t>(task->in.size(), 1));
    Status s = blocking ? engine.submit_blocking(std::move(q), task->in.data(), task->out.data(), &task->op)
                        : engine.submit(std::move(q), task->in.data(), task->out.data(), &task->op);
    *out = std::move(task);
    return s;
  }
  TaskPtr submit(Request q, std::vector<std::byte> in, bool blocking = false) {
    TaskPtr task;
    const std::string what = q.name;
    const Status s = try_submit(std::move(q), std::move(in), &task, blocking);
    require(s.ok(), "submitting '" + what + "': " + s.message());
    return task;
  }
  // The status of a finished operation; allgather's and alltoall's output is copied to task.out.
  Status finish(Task& task) {
    require(engine.wait(*task.op, Deadline::after(patience)), "'" + task.name + "' does not end");
    if (task.op->output) task.out.assign(task.op->output->data(), task.op->output->data() + task.op->output->bytes());
    return task.op->status();
  }
  void wait(Task& task) {
    const Status s = finish(task);
    require(s.ok(), "'" + task.name + "': " + s.message());
  }

  template <class T>
  static std::vector<std::byte> bytes_of(const std::vector<T>& v) {
    std::vector<std::byte> b(v.size() * sizeof(T));
    if (!v.empty()) std::memcpy(b.data(), v.data(), b.size());
    return b;
  }
  static Request request(Kind kind, const std::string& name, std::vector<int64_t> shape = {}, DType dtype = DType::int32) {
    Request q;
    q.kind = kind;
    q.name = name;
    q.shape = std::move(shape);
    q.dtype = dtype;
    return q;
  }
  // Sum of n int32 that are all `value`.
  TaskPtr sum_async(const std::string& name, int32_t value, size_t n = 1, uint32_t set = 0, bool blocking = false) {
    Request q = request(Kind::allreduce, name, {static_cast<int64_t>(n)});
    q.set = set;
    return submit(std::move(q), bytes_of(std::vector<int32_t>(n, value)), blocking);
  }
  int32_t sum(const std::string& name, int32_t value, size_t n = 1, uint32_t set = 0) {
    TaskPtr t = sum_async(name, value, n, set, true);
    wait(*t);
    if (n == 0) return 0;
    require(t->at<int32_t>(0) == t->at<int32_t>(n - 1), "'" + name + "': first and last element differ");
    return t->at<int32_t>(0);
  }
  // Ordering between ranks without the engine: a rank that awaits `n` marks continues once all ranks together
  // have made so many.
  void mark() { ++marks_; }
  void await_marks(int n) const {
    for (const Deadline deadline = Deadline::after(patience); marks_ < n; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
      require(!deadline.passed(), "another rank does not come as far as it should");
    }
  }
  void barrier(uint32_t set = 0) {
    Request q = request(Kind::barrier, "");
    q.set = set;
    wait(*submit(std::move(q), {}));
  }
  int last_joined() {
    TaskPtr t = submit(request(Kind::join, ""), {});
    wait(*t);
    return static_cast<int>(t->op->sizes.at(0));
  }
  // With a name, only the members call it.
  uint32_t add_set(const std::vector<int>& ranks, const std::string& name = "") {
    Request q = request(Kind::add_set, name);
    q.splits.assign(ranks.begin(), ranks.end());
    TaskPtr t = submit(std::move(q), {});
    wait(*t);
    return static_cast<uint32_t>(t->op->sizes.at(0));
  }
  bool remove_set(uint32_t id) {
    Request q = request(Kind::remove_set, "");
    q.splits = {id};
    TaskPtr t = submit(std::move(q), {});
    wait(*t);
    return t->op->sizes.at(0) != 0;
  }
  void expect(bool ok, const std::string& what) const { require(ok, what); }
  template <class A, class B>
  void equal(const A& a, const B& b, const std::string& what) const {
    require(a == b, what + ": " + std::to_string(a) + " instead of " + std::to_string(b));
  }

 private:
  std::atomic<int>& marks_;
};

// Runs body(program) on a thread for each rank; returns one line for each failed rank, "" if none failed.
inline std::string run(EngineWorld& world, const std::function<void(Program&)>& body, std::vector<int> ranks = {}) {
  if (ranks.empty()) {
    for (int r = 0; r < world.size(); ++r) ranks.push_back(r);
  }
  std::mutex mutex;
  std::string wrong;
  std::vector<std::thread> threads;
  for (int r : ranks) {
    threads.emplace_back([&, r] {
      try {
        Program program(world, r);
        body(program);
      } catch (const std::exception& e) {
        std::lock_guard lock(mutex);
        wrong += "rank " + std::to_string(r) + ": " + e.what() + "\n";
      }
    });
  }
  for (auto& t : threads) t.join();
  return wrong;
}

// The same in a new world; errors fail the test.
inline void check_ranks(int size, const Setup& setup, const std::function<void(Program&)>& body) {
  EngineWorld world(size, setup);
  CHECK(run(world, body) == "");
}

// The sum over ranks 0..n-1 of rank + 1.
inline int32_t total(int n) { return n * (n + 1) / 2; }

}  // namespace hvd::testing
