// Operations without a waiter: a callback reports their end. The program here is a graph executor, like
// TensorFlow's: it submits operations as they become possible, in any order, and sleeps until the last of a
// step is done.
#include <doctest/doctest.h>

#include <condition_variable>
#include <random>

#include "harness_engine.h"
#include "puppets.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// One rank's step: operations that may follow one another, and a waiter for the last one.
class Step {
 public:
  explicit Step(Engine& engine) : engine_(engine) {}

  // Starts one or two allreduces of an int32; on completion `then` is called with the result. A rejected
  // operation is an error of the step.
  void start(const std::string& name, int32_t value, std::function<void(int32_t)> then = {}, int64_t elements = 1) {
    auto* one = new One{this, {value, value}, {}, std::move(then)};
    {
      std::lock_guard lock(mutex_);
      ++under_way_;
    }
    const Status s =
        engine_.submit_unattended(Program::request(Kind::allreduce, name, {elements}), reinterpret_cast<const std::byte*>(one->in),
                                  reinterpret_cast<std::byte*>(one->out), &Step::done, one);
    if (!s.ok()) one->finish(s);
  }
  // The first error of any operation; internal if they do not end in time.
  Status wait(double seconds = 20) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return under_way_ == 0; })) {
      std::_Exit(66);  // the operations' memory is still in use, so the test cannot continue
    }
    return status_;
  }

 private:
  struct One {
    Step* step;
    int32_t in[2], out[2];
    std::function<void(int32_t)> then;
    void finish(const Status& s) {
      if (s.ok() && then) then(out[0]);
      Step* own = step;
      delete this;
      std::lock_guard lock(own->mutex_);
      if (!s.ok() && own->status_.ok()) own->status_ = s;
      if (--own->under_way_ == 0) own->changed_.notify_all();
    }
  };
  static void done(Operation& op, void* context) { static_cast<One*>(context)->finish(op.status()); }

  Engine& engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int under_way_ = 0;
  Status status_;
};

constexpr int kWide = 24;

// Sums that can start at any time, in this rank's own order, and a chain in which each starts after the
// previous one.
void graph_step(Program& p, std::mt19937& random, int number) {
  Step step(p.engine);
  std::vector<int> order;
  for (int i = 0; i < kWide; ++i) order.push_back(i);
  std::shuffle(order.begin(), order.end(), random);
  std::atomic<int> wrong{0}, links{0};
  std::function<void(int32_t)> next = [&](int32_t sum) {
    if (sum != (number + links) * p.size + total(p.size)) ++wrong;
    if (++links < 5) step.start("chain" + std::to_string(links), number + links + p.rank + 1, next);
  };
  step.start("chain0", number + p.rank + 1, next);
  for (int i : order) {
    step.start("wide" + std::to_string(i), number * i + p.rank + 1, [&wrong, &p, i, number](int32_t sum) {
      if (sum != number * i * p.size + total(p.size)) ++wrong;
    });
  }
  const Status s = step.wait();
  p.expect(s.ok(), "step " + std::to_string(number) + ": " + s.message());
  p.equal(wrong.load(), 0, "wrong sums in step " + std::to_string(number));
  p.equal(links.load(), 5, "links of the chain");
}

}  // namespace

TEST_CASE("unattended operations: any order on each rank, chains within a step, and schedules all the same") {
  for (Layout layout : kLayouts) {
    for (int size : {1, 2, 4}) {
      CAPTURE(name_of(layout));
      CAPTURE(size);
      EngineWorld world(size, {layout, crowded()});
      CHECK(run(world, [](Program& p) {
        std::mt19937 random(static_cast<unsigned>(p.rank));
        for (int s = 0; s < 60; ++s) graph_step(p, random, s);
      }) == "");
      CHECK(world.stats().scheduled > 0);
    }
  }
}

TEST_CASE("unattended operations: whatever is under way as a schedule begins or stops is looked after") {
  // One rank whose callbacks start the next operation: A, B, A, B, ... until `stop` of them, wherever the
  // schedule is then.
  for (int stop = 1; stop <= 12; ++stop) {
    CAPTURE(stop);
    check_ranks(1, {Layout::one_node, crowded()}, [stop](Program& p) {
      Step step(p.engine);
      int started = 1;
      std::function<void(int32_t)> next = [&](int32_t) {
        if (started == stop) return;
        const bool pair = started % 2 == 1 && started + 1 < stop;
        const int i = started;
        started += pair ? 2 : 1;
        step.start(i % 2 ? "B" : "A", 1, pair ? std::function<void(int32_t)>() : next);
        if (pair) step.start(i % 2 ? "A" : "B", 1, next);
      };
      step.start("A", 1, next);
      const Status s = step.wait();
      p.expect(s.ok(), s.message());
    });
  }
}

TEST_CASE("unattended operations: callbacks hear of a disagreement, and later operations work") {
  check_ranks(2, {Layout::one_node, crowded()}, [](Program& p) {
    Step step(p.engine);
    step.start("bad", 1, {}, p.rank + 1);
    const Status s = step.wait();
    p.expect(s.code() == Code::mismatch && s.message().find("bad") != std::string::npos, "told: " + s.message());
    p.equal(p.sum("good", p.rank + 1), total(p.size), "after the disagreement");
  });
}

TEST_CASE("unattended operations: callbacks hear of a lost rank and of shutdown") {
  {
    EngineWorld world(3, {.layout = Layout::apart, .settings = crowded(), .victims = {2}});
    CHECK(run(world, [&](Program& p) {
      Step step(p.engine);
      step.start("lost", 1);
      if (p.rank == 0) world.kill_victims();
      p.expect(step.wait().code() == Code::peer_lost, "not told of the lost rank");
      Step late(p.engine);
      late.start("late", 1);
      p.expect(late.wait().code() == Code::peer_lost, "accepted after the end");
    }, {0, 1}) == "");
  }
  check_ranks(1, {Layout::one_node, crowded()}, [](Program& p) {
    Step step(p.engine);
    p.engine.shutdown("the test");
    step.start("late", 1);
    p.expect(step.wait().code() == Code::shutdown, "accepted after shutdown");
  });
}
