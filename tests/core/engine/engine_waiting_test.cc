// Whole engines, a thread a rank: programs that poll, wait for others, or have several threads.
#include <doctest/doctest.h>

#include <atomic>
#include <random>

#include "everywhere.h"

using namespace hvd;
using namespace hvd::testing;

TEST_CASE("programs that only poll") {
  for (int spins : {0, 200}) {
    Settings settings = crowded();
    settings.spins = spins;
    everywhere([](Program& p) {
      for (int step = 0; step < 8; ++step) {
        std::vector<TaskPtr> tasks;
        for (int i = 0; i < 5; ++i) tasks.push_back(p.sum_async("t" + std::to_string(i), 1, 10));
        const Deadline deadline = Deadline::after(15);
        for (auto& t : tasks) {
          while (!p.engine.poll(*t->op)) {
            p.expect(!deadline.passed(), "polled in vain for '" + t->name + "'");
            std::this_thread::sleep_for(std::chrono::microseconds(100));
          }
          p.equal(t->at<int32_t>(9), p.size, "sum");
        }
      }
    }, settings);
  }
}

// A caller that waits for the first operation may hear of the second one while it drives the first, and then stop driving.
TEST_CASE("what a waiting caller has heard for others is not left lying") {
  for (Layout layout : kLayouts) {
    Settings settings = crowded();
    settings.cache_capacity = 0;
    settings.fusion_threshold = 0;
    EngineWorld world(3, {layout, settings});
    CHECK(run(world, [&](Program& p) {
      for (int step = 0; step < 300; ++step) {
        TaskPtr first = p.sum_async("a", 1, 3000);
        TaskPtr second = p.sum_async("b", 1, 10);
        p.wait(*(p.rank ? first : second));
        TaskPtr other = p.rank ? second : first;
        const Deadline deadline = Deadline::after(15);
        while (!p.engine.poll(*other->op)) {
          p.expect(!deadline.passed(), "step " + std::to_string(step) + ": lies about undone");
          std::this_thread::yield();
        }
      }
    }) == "");
  }
}

TEST_CASE("several threads of one rank submit and wait at once") {
  for (Layout layout : kLayouts) {
    EngineWorld world(3, {layout, crowded()});
    CHECK(run(world, [&](Program& p) {
      std::mutex mutex;
      std::string wrong;
      std::vector<std::thread> threads;
      for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          try {
            for (int step = 0; step < 25; ++step) {
              p.equal(p.sum("thread" + std::to_string(t), (t + 1) * (p.rank + 1), 20), 6 * (t + 1), "sum of a thread");
            }
          } catch (const std::exception& e) {
            std::lock_guard lock(mutex);
            wrong = e.what();
          }
        });
      }
      for (auto& t : threads) t.join();
      p.expect(wrong.empty(), wrong);
    }) == "");
  }
}
