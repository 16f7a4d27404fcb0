// Messages between observers: to rank 0, and from rank 0 to one or all, at every moment; and queries for
// waiting operations.
#include <doctest/doctest.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "engine/observers.h"
#include "harness_engine.h"
#include "puppets.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

class Listener final : public Observer {
 public:
  void received(int from, uint32_t topic, std::string_view body) override {
    note(std::to_string(from) + "/" + std::to_string(topic) + "/" + std::string(body));
  }
  void waiting(std::span<const Negotiator::Waiting> all, double now, bool explicit_request) override {
    std::string line = explicit_request ? "asked" : "warned";
    for (const auto& w : all) {
      line += " " + w.name + ":";
      for (int r : w.missing) line += std::to_string(r);
      CHECK(w.requested <= now);
    }
    note(line);
  }
  std::vector<std::string> lines() const {
    std::lock_guard lock(mutex_);
    return lines_;
  }
  bool has(const std::string& line) const {
    const auto all = lines();
    return std::find(all.begin(), all.end(), line) != all.end();
  }

 private:
  void note(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
  }
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

using Lines = std::vector<std::string>;

TEST_CASE("notes go to rank 0, and from there to one or to all, in order") {
  for (const Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    Puppets puppets(4, layout);
    std::vector<std::shared_ptr<Listener>> on;
    for (int r = 0; r < 4; ++r) puppets.observers(r).add(on.emplace_back(std::make_shared<Listener>()));
    const auto settle = [&] {
      for (int hops = 0; hops < 4; ++hops) puppets.settle();  // forwarding a message is not progress of operations
    };
    settle();
    CHECK(puppets.message_bus(3).post({0, 7, "up"}));
    CHECK(puppets.message_bus(3).post({1, 8, std::string("a\0b", 3)}));  // other ranks send to rank 0
    CHECK(puppets.message_bus(0).post({0, 9, "own"}));
    settle();
    CHECK(puppets.message_bus(0).post({-1, 1, "all"}));
    CHECK(puppets.message_bus(0).post({2, 2, "one"}));
    settle();
    const Lines lines_read = on[0]->lines();
    CHECK(lines_read.size() == 4);
    CHECK(on[0]->has("3/7/up"));
    CHECK(on[0]->has(std::string("3/8/a\0b", 7)));
    CHECK(on[0]->has("0/9/own"));
    CHECK(lines_read.back() == "0/1/all");
    CHECK(on[1]->lines() == Lines{"0/1/all"});
    CHECK(on[2]->lines() == Lines{"0/1/all", "0/2/one"});
    CHECK(on[3]->lines() == Lines{"0/1/all"});
  }
}

TEST_CASE("whoever asks hears at once who waits for whom") {
  Puppets puppets(3, Layout::one_node);
  auto listener = std::make_shared<Listener>();
  puppets.observers(0).add(listener);
  puppets.message_bus(0).ask_who_waits();
  puppets.settle();
  for (int r : {0, 2}) puppets.submit(r, Program::request(Kind::allreduce, "x", {5}));
  puppets.settle();
  puppets.message_bus(1).ask_who_waits();  // a rank that does not know does not answer
  puppets.message_bus(0).ask_who_waits();
  puppets.settle();
  CHECK(listener->lines() == Lines{"asked", "asked x:1"});
}

TEST_CASE("notes arrive while everybody sleeps, while a schedule runs, and none after the end") {
  for (const Layout layout : kLayouts) {
    CAPTURE(name_of(layout));
    EngineWorld world(4, {layout});
    std::vector<std::shared_ptr<Listener>> on;
    for (int r = 0; r < 4; ++r) world.engine(r).observers().add(on.emplace_back(std::make_shared<Listener>()));
    const auto arrives = [](const Listener& listener, const std::string& line) {
      const Deadline deadline = Deadline::after(20);
      while (!listener.has(line) && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return listener.has(line);
    };
    CHECK(run(world, [&](Program& p) {
      p.barrier();
      if (p.rank == 3) p.expect(p.engine.post_message({0, 1, "asleep"}), "no room for a note");
      if (p.rank == 0) p.expect(arrives(*on[0], "3/1/asleep"), "a note to rank 0 is lost");
      p.barrier();
      for (int step = 0; step < 300; ++step) {
        if (step == 150 && p.rank == 2) p.expect(p.engine.post_message({0, 1, "in a schedule"}), "no room for a note");
        if (step == 150 && p.rank == 0) p.expect(p.engine.post_message({-1, 1, "to all"}), "no room for a note");
        p.equal(p.sum("x", 1), 4, "x");
      }
      p.expect(arrives(*on[p.rank], "0/1/to all"), "a note from rank 0 is lost");
      if (p.rank == 0) p.expect(arrives(*on[0], "2/1/in a schedule"), "a note to rank 0 is lost");
      p.barrier();
    }) == "");
    world.engine(1).shutdown("");
    CHECK(world.engine(1).post_message({0, 1, "too late"}));
    CHECK(!on[0]->has("1/1/too late"));
  }
}

}  // namespace
