// Two frameworks of one process on one engine: each has its own names, groups, numbers of unnamed operations
// and joins.
#include <doctest/doctest.h>

#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

TaskPtr sum_async(Program& p, uint8_t frontend, const std::string& name, int32_t value, size_t n = 1) {
  Request q = Program::request(Kind::allreduce, name, {static_cast<int64_t>(n)});
  q.frontend = frontend;
  return p.submit(std::move(q), Program::bytes_of(std::vector<int32_t>(n, value)));
}

TaskPtr join_async(Program& p, uint8_t frontend) {
  Request q = Program::request(Kind::join, "join.noname");
  q.frontend = frontend;
  return p.submit(std::move(q), {});
}

}  // namespace

TEST_CASE("frontends: the same names at once, each rank in its own order, with and without schedules") {
  Settings negotiated = crowded();
  negotiated.cache_capacity = 0;
  for (const Settings& settings : {crowded(), negotiated}) {
    everywhere([](Program& p) {
      for (int step = 0; step < 24; ++step) {
        std::map<int, TaskPtr> tasks;
        for (int i = 0; i < 6; ++i) {
          const int which = (step % 12 == 11 ? i + p.rank : i) % 6;  // sometimes every rank uses a different order
          const auto frontend = static_cast<uint8_t>(which % 3);
          tasks[which] = sum_async(p, frontend, which < 3 ? "a" : "b", 100 * which + step, 1 + which);
        }
        for (auto& [which, task] : tasks) {
          p.wait(*task);
          p.equal(task->at<int32_t>(0), p.size * (100 * which + step), "frontend " + std::to_string(which % 3));
        }
      }
    }, settings, {1, 2, 4}, [&](EngineWorld& world) { CHECK((world.stats().scheduled > 0) == (settings.cache_capacity > 0)); });
  }
}

TEST_CASE("frontends: one joins, and the other goes on; both may have joined at once") {
  everywhere([](Program& p) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      TaskPtr joined;
      if (p.rank == 0) {
        joined = join_async(p, 1);
      } else {
        for (int i = 0; i < 3; ++i) {  // without rank 0, and without names
          TaskPtr alone = sum_async(p, 1, "", 1);
          p.wait(*alone);
          p.equal(alone->at<int32_t>(0), p.size - 1, "the frontend that rank 0 has left");
        }
      }
      TaskPtr both = sum_async(p, 0, "", 1);
      p.wait(*both);
      p.equal(both->at<int32_t>(0), p.size, "the other frontend");
      if (p.rank != 0) joined = join_async(p, 1);
      TaskPtr other = join_async(p, 0);
      p.wait(*other);
      p.wait(*joined);
      TaskPtr after = sum_async(p, 1, "", 1);
      p.wait(*after);
      p.equal(after->at<int32_t>(0), p.size, "after all have joined");
    }
  });
}

TEST_CASE("frontends: a mismatch names what the user named, and spoils nothing of the other frontend") {
  check_ranks(2, {Layout::one_node, crowded()}, [](Program& p) {
    TaskPtr bad = sum_async(p, 1, "a", 1, p.rank == 0 ? 2 : 3), good = sum_async(p, 0, "a", 1, 3);
    const Status s = p.finish(*bad);
    p.expect(s.code() == Code::mismatch && s.message().find("allreduce 'a': ranks disagree about the shape") == 0, s.message());
    p.wait(*good);
    p.equal(good->at<int32_t>(2), 2, "frontend 0");
  });
}
