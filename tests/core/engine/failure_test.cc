// How a job ends: a rank that dies, a rank that leaves, all ranks that leave at once, and what other ranks
// are told.
#include <dirent.h>
#include <doctest/doctest.h>

#include <atomic>
#include <latch>

#include "../contains.h"
#include "base/wire.h"
#include "harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

size_t entries(const char* directory) {
  size_t n = 0;
  DIR* d = ::opendir(directory);
  while (::readdir(d)) ++n;
  ::closedir(d);
  return n;
}

// Seconds: less than the timeout of collectives, which would also end every wait, and enough for a busy
// machine.
constexpr double kSoon = 10;

}  // namespace

// The victim agrees to the operation (it has only a control plane) and dies while the others are in it.
TEST_CASE("a rank that dies inside a collective") {
  for (Layout layout : kLayouts) {
    for (int size : {2, 3, 4}) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      const int victim = size - 1;
      Setup setup{layout, crowded()};
      setup.victims = {victim};
      EngineWorld world(size, setup);
      // Its control link was made first.
      std::vector<int> fds = world.victim_fds(victim);
      const int control_fd = ::dup(fds.at(0));
      {
        Control control(victim, adopt_socket(control_fd), 0, {});
        Request q = Program::request(Kind::allreduce, "big", {100000});
        std::string payload;
        Writer(&payload).put(uint64_t{0});
        encode(std::vector<Request>{q, Program::request(Kind::allreduce, "small", {10})}, &payload);
        control.send_up(FrameType::request, payload);
        std::vector<int> ranks;
        for (int r = 0; r < victim; ++r) ranks.push_back(r);
        std::latch submitted(victim);  // however slow the machine is
        std::thread killer([&] {
          for (int tries = 0; tries < 600 && !submitted.try_wait(); ++tries) std::this_thread::sleep_for(std::chrono::milliseconds(100));
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          world.kill_victims();
          ::shutdown(control_fd, SHUT_RDWR);
        });
        const std::string wrong = run(world, [&](Program& p) {
          p.patience = kSoon;
          TaskPtr small = p.sum_async("small", 1, 10);
          TaskPtr big = p.sum_async("big", 1, 100000);
          submitted.count_down();
          for (Task* t : {big.get(), small.get()}) {
            const Status s = p.finish(*t);
            p.expect(s.code() == Code::peer_lost, "code of: " + s.message());
            p.expect(contains(s.message(), "rank " + std::to_string(victim)), "does not name the lost rank: " + s.message());
            p.expect(contains(s.message(), "in flight on rank " + std::to_string(p.rank) + ": allreduce '"),
                     "what was in flight: " + s.message());
            p.expect(s.rank() == victim && p.engine.ended().rank() == victim, "the lost rank, as a number: " + std::to_string(s.rank()));
          }
          TaskPtr late;
          p.expect(p.try_submit(Program::request(Kind::barrier, ""), {}, &late).code() == Code::peer_lost, "accepted after the end");
        }, ranks);
        killer.join();
        CHECK(wrong == "");
      }
    }
  }
}

TEST_CASE("a rank that leaves on purpose: the others' pending operations fail with its reason") {
  for (Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    check_ranks(4, {layout, crowded()}, [&](Program& p) {
      p.sum("before", p.rank);
      if (p.rank == 2) {
        p.engine.shutdown("had enough");
        TaskPtr late;
        p.expect(p.try_submit(Program::request(Kind::barrier, ""), {}, &late).code() == Code::shutdown, "accepted after shutdown");
        return;
      }
      p.patience = kSoon;
      TaskPtr task;
      Status s = p.try_submit(Program::request(Kind::allreduce, "after", {1}), Program::bytes_of<int32_t>({1}), &task);
      if (s.ok()) s = p.finish(*task);  // otherwise the failure arrived first
      p.expect(s.code() == Code::shutdown, "code of: " + s.message());
      p.expect(contains(s.message(), "rank 2") && contains(s.message(), "had enough"), "message: " + s.message());
      p.expect(s.rank() == 2, "the rank that has left, as a number: " + std::to_string(s.rank()));
    });
  }
}

namespace {

// Holds messages until it is released, and then sends them together.
class HeldLink final : public PassingLink {
 public:
  HeldLink(std::unique_ptr<Link> inner, const bool* held) : PassingLink(std::move(inner)), held_(held) {}
  int64_t try_send(ConstBytes data) override { return *held_ ? 0 : PassingLink::try_send(data); }

 private:
  const bool* held_;
};

}  // namespace

TEST_CASE("shutdown in the middle of a schedule ends it everywhere") {
  for (Layout layout : kLayouts) {
    for (int round = 0; round < 10; ++round) {
      CAPTURE(name_of(layout));
      CAPTURE(round);
      check_ranks(3, {layout, crowded()}, [&](Program& p) {
        p.patience = kSoon;
        Status s;
        for (int step = 0; s.ok(); ++step) {
          std::vector<TaskPtr> tasks;
          // Barriers do not fuse, and each of eight buckets may be the last one.
          for (int i = 0; i < 4 && s.ok(); ++i) {
            TaskPtr t;
            const Request sum = Program::request(Kind::allreduce, "g" + std::to_string(i), {30000});
            s = p.try_submit(sum, Program::bytes_of(std::vector<int32_t>(30000, 1)), &t);
            if (s.ok()) tasks.push_back(t);
            if (s.ok()) s = p.try_submit(Program::request(Kind::barrier, "b" + std::to_string(i)), {}, &t);
            if (s.ok()) tasks.push_back(t);
          }
          if (p.rank == 1 && step == 20) {
            std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
            p.engine.shutdown("now");
          }
          for (auto& t : tasks) {
            const Status done = p.finish(*t);
            p.expect(!done.ok() || t->in.empty() || t->at<int32_t>(0) == p.size, "a wrong sum");
            if (s.ok()) s = done;
          }
        }
        p.expect(s.code() == Code::shutdown, "code of: " + s.message());
      });
    }
  }
}

TEST_CASE("the first to finish may leave at once: the others still get the last result") {
  for (Layout layout : kLayouts) {
    for (int round = 0; round < 100; ++round) {
      CAPTURE(name_of(layout));
      CAPTURE(round);
      const int size = 2 + round % 3;
      const int steps = round % 7;  // up to a running schedule
      EngineWorld world(size, {layout, crowded()});
      const std::string wrong = run(world, [&](Program& p) {
        for (int s = 0; s < steps; ++s) p.sum("step", 1);
        TaskPtr last = p.sum_async(round % 2 ? "step" : "last", p.rank + 1, 1 + 5000 * static_cast<size_t>(round % 3));
        p.wait(*last);
        if (p.rank == 0) p.engine.shutdown("");
        p.equal(last->at<int32_t>(0), total(p.size), "result");
      });
      REQUIRE(wrong == "");
    }
  }
}

TEST_CASE("worlds come and go without leaving descriptors or threads behind") {
  const size_t fds = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  // takes seconds, unless engines wait for each other's goodbyes until a timeout
  const Deadline slow = Deadline::after(150);
  for (int round = 0; round < 200; ++round) {
    EngineWorld world(2 + round % 3, {kLayouts[round % 3], crowded()});
    CHECK(run(world, [&](Program& p) { p.equal(p.sum("x", 1), p.size, "sum"); }) == "");
  }
  CHECK(entries("/proc/self/fd") == fds);
  // A joined thread may still be listed for a moment.
  for (const Deadline deadline = Deadline::after(kSoon); entries("/proc/self/task") != threads && !deadline.passed();)
    std::this_thread::yield();
  CHECK(entries("/proc/self/task") == threads);
  CHECK(!slow.passed());
}
