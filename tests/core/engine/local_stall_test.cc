// A rank's own watchdog for waiting operations: in virtual time, and in engines whose rank 0 is silent.
#include <doctest/doctest.h>

#include "agree/stall.h"
#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

struct Log {
  std::mutex mutex;
  std::string text;
  int warnings = 0;
  LogSink sink() {
    return [this](LogLevel, const std::string& t) {
      std::lock_guard lock(mutex);
      text += t;
      ++warnings;
    };
  }
  bool has(const std::string& part) {
    std::lock_guard lock(mutex);
    return text.find(part) != std::string::npos;
  }
};

// The cases wait for time to pass, so they run in parallel.
void at_once(const std::vector<double>& cases, const std::function<void(double)>& body) {
  std::vector<std::thread> threads;
  for (double one : cases) threads.emplace_back([&body, one] { body(one); });
  for (auto& t : threads) t.join();
}

}  // namespace

TEST_CASE("rank 0 has the first word; what it does not know of is reported here") {
  Log log;
  const LogSink sink = log.sink();
  LocalStallCheck watch(60, 200, "rank 3");
  const std::vector<LocalStallCheck::Waiting> waiting{{"0/x", "allreduce 'x'", 10}, {"0/y", "broadcast 'y'", 12}};
  CHECK(watch.check(waiting, "", 74, sink).ok());
  CHECK(log.warnings == 0);
  watch.known({"0/x", "0/y"}, 74);
  CHECK(watch.check(waiting, "", 100, sink).ok());
  CHECK(log.warnings == 0);
  watch.known({"0/y"}, 130);
  CHECK(watch.check(waiting, "", 131, sink).ok());
  CHECK(log.warnings == 1);
  CHECK(log.has("rank 3"));
  CHECK(log.has("up to 121 s: allreduce 'x'\n"));
  CHECK(watch.check(waiting, "", 132, sink).ok());
  CHECK(log.warnings == 1);  // not repeated at once
  CHECK(watch.check(waiting, "The reason.", 196, sink).ok());  // rank 0 has been silent for long
  CHECK(log.warnings == 2);
  CHECK(log.has("broadcast 'y'"));
  CHECK(log.has("The reason."));
  CHECK(watch.check(waiting, "", 214, sink).ok());
  const Status end = watch.check(waiting, "", 216, sink);
  CHECK(end.code() == Code::timeout);
  watch.known({"0/x", "0/y"}, 216);
  CHECK(watch.check(waiting, "", 216, sink).ok());
}

// Rank 0 is not simulated at all, as if its engine were stopped.
TEST_CASE("a rank 0 that says nothing: each rank reports what it waits for, and ends the job if asked to") {
  at_once({0.0, 0.3}, [](double shutdown) {
    Log log;
    Setup setup{Layout::apart, crowded()};
    setup.settings.stall_warning = 0.2;
    setup.settings.stall_shutdown = shutdown;
    setup.victims = {0};
    setup.log = log.sink();
    EngineWorld world(2, setup);
    CHECK(run(world, [&](Program& p) {
      TaskPtr task = p.sum_async("lonely", 1);
      if (shutdown == 0) {
        const Deadline patience = Deadline::after(15);
        while (!log.has("allreduce 'lonely'") && !patience.passed()) p.engine.wait(*task->op, Deadline::after(0.05));
        return;
      }
      const Status s = p.finish(*task);
      p.expect(s.code() == Code::timeout && s.message().find("lonely") != std::string::npos, s.message());
    }, {1}) == "");
    CHECK(log.has("rank 1") == (shutdown == 0));
  });
}

TEST_CASE("what rank 0 reports is not reported again, and a joined rank may wait while others go on") {
  at_once({0, 1}, [](double joins) {
    Log log;
    Setup setup{Layout::one_node, crowded()};
    setup.settings.stall_warning = 1;
    setup.log = log.sink();
    EngineWorld world(3, setup);
    CHECK(run(world, [&](Program& p) {
      for (int i = 0; joins && p.rank < 2 && i < 25; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        p.equal(p.sum("x", 1), 2, "sum");
      }
      if (joins) p.last_joined();
      if (!joins && p.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(3000));
      if (!joins) p.equal(p.sum("late", 1), 3, "late");
    }) == "");
    CHECK(log.has("missing on rank 1: late") == !joins);
    CHECK(!log.has("Rank 0, which"));
    if (joins) CHECK(log.text == "");
  });
}

TEST_CASE("members that never come, and joins, are reported and end the job") {
  at_once({0, 1}, [](double group) {
    Log log;
    Setup setup{Layout::pairs, crowded()};
    setup.settings.stall_warning = 1;
    setup.settings.stall_shutdown = 2;
    setup.log = log.sink();
    check_ranks(3, setup, [&](Program& p) {
      Request q = Program::request(group ? Kind::allreduce : Kind::join, group ? "m0" : "", {});
      if (group) q.group = "g", q.group_size = 2;
      if (!group && p.rank == 1) return;
      TaskPtr task = p.submit(q, Program::bytes_of(std::vector<int32_t>(1, 1)));
      const Status s = p.finish(*task);
      p.expect(s.code() == Code::timeout, s.message());
    });
    CHECK(log.has(group ? "group 'g' (only 1 of its 2 members)" : "missing on rank 1: join"));
  });
}

// Rank 0's engine blocks in a callback, as if its process were stopped.
TEST_CASE("who waits in vain in a schedule tells whose engine does not let it end") {
  at_once({0.0, 0.3}, [](double shutdown) {
    Log log;
    Setup setup{Layout::one_node, crowded()};
    setup.settings.stall_warning = 0.2;
    setup.settings.stall_shutdown = shutdown;
    setup.log = log.sink();
    EngineWorld world(2, setup);
    std::atomic<bool> over{false};
    const auto stand_still = [](Operation&, void* until) {
      const Deadline patience = Deadline::after(18);
      while (!*static_cast<std::atomic<bool>*>(until) && !patience.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    };
    CHECK(run(world, [&](Program& p) {
      const std::string who = "answer from the engine of rank 0";
      for (int i = 0; i < 20; ++i) p.equal(p.sum("x", 1), 2, "sum");
      p.equal(p.engine.stats().schedules - p.engine.stats().revocations, uint64_t{1}, "schedules");
      if (p.rank == 0) {
        int32_t value = 1;
        auto* memory = reinterpret_cast<std::byte*>(&value);
        require(p.engine.submit_unattended(Program::request(Kind::allreduce, "x", {1}), memory, memory, stand_still, &over).ok(), "x");
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        if (shutdown == 0) p.equal(p.sum("x", 1), 2, "afterwards");
        return;
      }
      p.equal(p.sum("x", 1), 2, "the last one");
      TaskPtr task = p.sum_async("x", 1);
      const Deadline patience = Deadline::after(15);
      while (shutdown == 0 && !log.has(who) && !patience.passed()) p.engine.wait(*task->op, Deadline::after(0.05));
      if (shutdown == 0) over = true;
      const Status s = p.finish(*task);
      over = true;
      p.expect(shutdown == 0 ? s.ok() && log.has(who) : s.code() == Code::timeout && s.message().find(who) != std::string::npos,
               s.message() + log.text);
    }) == "");
  });
}
