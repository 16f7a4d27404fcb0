// Measures the cost of observers (engine/observer.h): a small allreduce of one rank is submitted repeatedly, with a
// number of observers that do nothing, in addition to the counters.
//
//   observer_bench [turns] [operations per turn]
//
// The numbers of observers alternate in short turns, so that noise of the machine affects all of them. It measures CPU
// time of the calling thread, which runs the engine's progress loop. Prints median, 10th and 90th percentile per
// operation in nanoseconds.
#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <vector>

#include "backends/host.h"
#include "engine/engine.h"

namespace {

using namespace hvd;

class Silent final : public Observer {};
class SilentSubmissions final : public Observer {
  bool wants_submissions() const override { return true; }
};

[[noreturn]] void give_up(const Status& status) {
  fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

EngineOptions alone() {
  EngineOptions o;
  o.rank = 0;
  o.size = 1;
  o.node_of = {0};
  o.labels = {"rank 0"};
  o.event_fds = {::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
  if (Status s = make_host_backend("", &o.backend); !s.ok()) give_up(s);
  o.log = [](LogLevel, const std::string&) {};
  return o;
}

double cpu_ns() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

double turn(Engine& engine, OperationPtr& op, int operations) {
  float value = 1;
  auto* memory = reinterpret_cast<std::byte*>(&value);
  const double before = cpu_ns();
  for (int i = 0; i < operations; ++i) {
    if (Status s = engine.submit_again(&op, memory, memory, true); !s.ok()) give_up(s);
    engine.wait(*op, Deadline::after(30));
  }
  return (cpu_ns() - before) / operations;
}

}  // namespace

int main(int argc, char** argv) {
  const int turns = argc > 1 ? atoi(argv[1]) : 200, operations = argc > 2 ? atoi(argv[2]) : 20'000;
  Engine engine(alone());
  Request q;
  q.name = "x";
  q.shape = {1};
  float value = 1;
  auto* memory = reinterpret_cast<std::byte*>(&value);
  OperationPtr op;
  if (Status s = engine.submit_blocking(q, memory, memory, &op); !s.ok()) give_up(s);
  engine.wait(*op, Deadline::after(30));
  turn(engine, op, operations);  // until the schedule runs

  struct Case {
    const char* what;
    int listeners;
    bool submissions;
    std::vector<double> ns;
  } cases[] = {{"the counters alone", 0, false, {}},
               {"1 listener that does nothing", 1, false, {}},
               {"16 of them", 16, false, {}},
               {"1 that also wants submissions", 1, true, {}}};
  for (int i = 0; i < turns; ++i) {
    for (Case& one : cases) {
      std::vector<std::shared_ptr<Observer>> all;
      for (int k = 0; k < one.listeners; ++k) {
        all.push_back(one.submissions ? std::shared_ptr<Observer>(std::make_shared<SilentSubmissions>()) : std::make_shared<Silent>());
        engine.observers().add(all.back());
      }
      turn(engine, op, operations / 20);
      one.ns.push_back(turn(engine, op, operations));
      for (const auto& o : all) engine.observers().remove(o.get());
    }
  }
  for (Case& one : cases) {
    std::sort(one.ns.begin(), one.ns.end());
    const auto at = [&one](double share) { return one.ns[static_cast<size_t>(share * static_cast<double>(one.ns.size() - 1))]; };
    printf("%-32s %7.1f ns (%.1f to %.1f)\n", one.what, at(0.5), at(0.1), at(0.9));
  }
  const auto stats = engine.stats();
  printf("%llu operations, %llu of them by a schedule\n", static_cast<unsigned long long>(stats.operations),
         static_cast<unsigned long long>(stats.scheduled));
}
