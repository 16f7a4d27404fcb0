// Measures the control messages of a given number of ranks. All engines run in one process on simulated hosts
// (control_world.h). Each engine has its own thread, and the program has one more thread per engine. A run measures one
// case; benchmarks/control.py runs many cases and plots the results.
//
//   control_bench RANKS RANKS_PER_HOST SCHEDULES(0|1) TENSORS STEPS
//
// RANKS must be a power of two. A step submits TENSORS allreduces and waits for all of them. The output is a line of
// JSON. Counts are exact. CPU times are per thread, as measured by the kernel. The time of a step covers the work of all
// ranks, which share the cores of this machine.
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control_world.h"
#include "engine/engine.h"

namespace {

using namespace hvd;

constexpr double kPatience = 300;

double wall() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double cpu(clockid_t clock) {
  timespec t;
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

long thread_number() { return ::syscall(SYS_gettid); }

// Returns the CPU time of a thread of this process in seconds.
double ran(long thread) {
  unsigned long long ns = 0;
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/schedstat";
  if (FILE* file = ::fopen(path.c_str(), "r")) {
    if (::fscanf(file, "%llu", &ns) != 1) ns = 0;
    ::fclose(file);
  }
  return 1e-9 * static_cast<double>(ns);
}

// Finds the engine's thread, which is the waking thread that does not belong to the program.
class FindThread final : public Observer {
 public:
  void awake() override {
    if (const long me = thread_number(); me != program) engine = me;
  }
  std::atomic<long> program{0}, engine{0};
};

class Program {
 public:
  Program(Engine& engine, int tensors) : engine_(engine), memory_(static_cast<size_t>(tensors)) {
    for (int t = 0; t < tensors; ++t) {
      Request q;
      q.name = "DistributedOptimizer.gradient." + std::to_string(t);
      q.shape = {1};
      requests_.push_back(q);
    }
  }
  void step() {
    std::vector<OperationPtr> all(requests_.size());
    for (size_t t = 0; t < all.size(); ++t) {
      auto* memory = reinterpret_cast<std::byte*>(&memory_[t]);
      if (Status s = engine_.submit(requests_[t], memory, memory, &all[t]); !s.ok()) give_up(s.message());
    }
    for (const OperationPtr& op : all) {
      if (!engine_.wait(*op, Deadline::after(kPatience))) give_up("a step does not end");
      if (!op->status().ok()) give_up(op->status().message());
    }
  }

 private:
  Engine& engine_;
  std::vector<Request> requests_;
  std::vector<float> memory_;
};

// Counters read before and after the measured steps.
struct Reading {
  double at = wall(), all_cpu = cpu(CLOCK_PROCESS_CPUTIME_ID);
  uint64_t votes, vote_bytes;
  std::vector<Engine::Stats> stats;
  std::vector<double> engine_cpu, program_cpu;  // CPU seconds used by the observed ranks
};

void raise_limits() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

struct Case {
  Layout layout;
  bool schedules;
  int tensors, steps;
};

void print(const Case& c, const std::vector<int>& seen, const Reading& a, const Reading& b) {
  const double steps = c.steps;
  uint64_t messages = 0, bytes = 0;
  for (size_t r = 0; r < b.stats.size(); ++r) {
    messages += b.stats[r].control_sent.messages - a.stats[r].control_sent.messages;
    bytes += b.stats[r].control_sent.bytes - a.stats[r].control_sent.bytes;
  }
  printf("\"step_us\":%.2f,\"cpu_us\":%.2f,\"messages\":%.2f,\"bytes\":%.1f,\"votes\":%.2f,\"vote_bytes\":%.1f",
         1e6 * (b.at - a.at) / steps, 1e6 * (b.all_cpu - a.all_cpu) / steps, static_cast<double>(messages) / steps,
         static_cast<double>(bytes) / steps, static_cast<double>(b.votes - a.votes) / steps,
         static_cast<double>(b.vote_bytes - a.vote_bytes) / steps);
  const char* names[] = {"rank0", "first_of_host", "last"};
  for (size_t i = 0; i < seen.size(); ++i) {
    const auto r = static_cast<size_t>(seen[i]);
    const auto each = [&](uint64_t after, uint64_t before) { return static_cast<double>(after - before) / steps; };
    const Engine::Stats &x = a.stats[r], &y = b.stats[r];
    printf(
        ",\"%s\":{\"rank\":%d,\"sent\":%.3f,\"sent_bytes\":%.1f,\"received\":%.3f,\"received_bytes\":%.1f,\"control_us\":%.2f,"
        "\"engine_us\":%.2f,\"program_us\":%.2f,\"negotiated\":%.3f,\"announcements\":%.3f,\"scheduled\":%.3f}",
        names[i], seen[i], each(y.control_sent.messages, x.control_sent.messages), each(y.control_sent.bytes, x.control_sent.bytes),
        each(y.control_received.messages, x.control_received.messages), each(y.control_received.bytes, x.control_received.bytes),
        1e-3 * each(y.control_ns, x.control_ns), 1e6 * (b.engine_cpu[i] - a.engine_cpu[i]) / steps,
        1e6 * (b.program_cpu[i] - a.program_cpu[i]) / steps, each(y.negotiated, x.negotiated), each(y.announcements, x.announcements),
        each(y.scheduled, x.scheduled));
  }
}

void run(const Case& c) {
  const auto ranks = static_cast<size_t>(c.layout.ranks);
  Settings settings;
  settings.spins = 0;
  settings.timeout = kPatience;
  settings.stall_warning = 0;
  settings.cache_capacity = c.schedules ? 1024 : 0;
  Votes votes;
  const double began = wall();
  std::vector<EngineOptions> options = wire(c.layout, settings, &votes);
  const double wired = wall(), cpu_before = cpu(CLOCK_THREAD_CPUTIME_ID);
  std::vector<std::unique_ptr<Engine>> engines;
  for (EngineOptions& o : options) engines.push_back(std::make_unique<Engine>(std::move(o)));
  const double created = wall(), cpu_made = cpu(CLOCK_THREAD_CPUTIME_ID);

  std::vector<int> seen = {0};
  if (c.layout.hosts() > 1 && c.layout.per_host > 1) seen.push_back(c.layout.leader_of(c.layout.ranks - 1));
  if (seen.size() < 2) seen.push_back(std::min(1, c.layout.ranks - 1));
  seen.push_back(c.layout.ranks - 1);
  std::vector<std::shared_ptr<FindThread>> threads_of;
  for (int r : seen) {
    threads_of.push_back(std::make_shared<FindThread>());
    engines[static_cast<size_t>(r)]->observers().add(threads_of.back());
  }

  constexpr int kWarmUp = 12;
  std::barrier together(static_cast<std::ptrdiff_t>(ranks) + 1);
  std::vector<std::thread> programs;
  for (size_t r = 0; r < ranks; ++r) {
    programs.emplace_back([&, r] {
      ::pthread_setname_np(::pthread_self(), ("rank " + std::to_string(r)).c_str());  // for profilers
      for (size_t i = 0; i < seen.size(); ++i) {
        if (seen[i] == static_cast<int>(r)) threads_of[i]->program = thread_number();
      }
      Program program(*engines[r], c.tensors);
      program.step();
      together.arrive_and_wait();  // All ranks have finished the first step.
      for (int i = 0; i < kWarmUp; ++i) program.step();
      together.arrive_and_wait();
      together.arrive_and_wait();  // The counters have been read.
      for (int i = 0; i < c.steps; ++i) program.step();
      together.arrive_and_wait();
      together.arrive_and_wait();  // The counters have been read again.
    });
  }
  const auto read = [&] {
    Reading now;
    now.votes = votes.messages;
    now.vote_bytes = votes.bytes;
    for (const auto& engine : engines) now.stats.push_back(engine->stats());
    for (const auto& t : threads_of) {
      now.engine_cpu.push_back(t->engine ? ran(t->engine) : 0);
      now.program_cpu.push_back(ran(t->program));
    }
    return now;
  };
  together.arrive_and_wait();
  const double first = wall();
  together.arrive_and_wait();
  const Reading before = read();
  together.arrive_and_wait();
  together.arrive_and_wait();
  const Reading after = read();
  together.arrive_and_wait();
  for (std::thread& t : programs) t.join();

  printf(
      "{\"ranks\":%zu,\"hosts\":%d,\"schedules\":%s,\"tensors\":%d,\"steps\":%d,\"wire_s\":%.4f,\"engines_s\":%.4f,\"engine_cpu_us\":%.1f,"
      "\"first_step_s\":%.4f,",
      ranks, c.layout.hosts(), c.schedules ? "true" : "false", c.tensors, c.steps, wired - began, created - wired,
      1e6 * (cpu_made - cpu_before) / static_cast<double>(ranks), first - created);
  print(c, seen, before, after);
  printf("}\n");
  std::vector<std::thread> leaving;
  for (auto& engine : engines) leaving.emplace_back([&engine] { engine.reset(); });
  for (std::thread& t : leaving) t.join();
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) { return argc > i ? atoi(argv[i]) : otherwise; };
  const Case c{{number(1, 16), number(2, 8)}, number(3, 1) != 0, number(4, 32), number(5, 100)};
  if (c.layout.ranks < 1 || !std::has_single_bit(static_cast<unsigned>(c.layout.ranks)) || c.layout.per_host < 1 || c.tensors < 1 ||
      c.steps < 1)
    give_up("control_bench RANKS RANKS_A_HOST SCHEDULES(0|1) TENSORS STEPS; RANKS: a power of two");
  raise_limits();
  run(c);
}
