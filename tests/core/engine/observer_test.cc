// Events that an engine reports to observers: their order and threads, and observers that come and go while
// it runs.
#include <doctest/doctest.h>

#include <thread>

#include "harness_engine.h"
#include "puppets.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// Records a line for each event; those of submitting threads are kept separate from the driver's.
class Recorder final : public Observer {
 public:
  bool wants_submissions() const override { return true; }
  void submitted(const Operation& op) override { submission("submitted " + op.request.name); }
  void refused(const Operation& op, const Status&) override { submission("refused " + op.request.name); }

  void requested(std::span<const Request> requests) override {
    for (const Request& q : requests) note("announced " + q.name);
  }
  void decided(std::span<const Response> responses) override { note("decided", responses); }
  void agreed(std::span<const Response> responses) override { note("agreed", responses); }
  void started(const Execution& e) override {
    note("started " + text(e.response) + " " + std::string(e.algorithm()) + " " + std::to_string(e.bytes));
  }
  void finished(const Execution& e, const Status& s) override { note((s.ok() ? "finished " : "broke ") + text(e.response)); }
  void failed(const Response& r) override { note("failed " + text(r)); }
  void schedule_begun(const Schedule& s) override { note("begun " + std::to_string(s.buckets.size())); }
  void bucket_done(const Schedule::Bucket& b) override { note("bucket " + text(b.parts.front())); }
  void schedule_ended(const Schedule&, uint64_t position) override { note("left at " + std::to_string(position)); }
  void asleep(double) override { ++sleeps; }
  void awake() override { ++wakes; }
  void ended(const Status& why) override { note("ended " + std::string(why.code() == Code::shutdown ? "shutdown" : "otherwise")); }

  std::vector<std::string> take() { return std::exchange(lines_, {}); }
  std::vector<std::string> take_submissions() {
    std::lock_guard lock(mutex_);
    return std::exchange(submissions_, {});
  }
  std::atomic<int> sleeps{0}, wakes{0};

 private:
  static std::string text(const Response& r) {
    std::string out;
    for (const std::string& name : r.names) out += (out.empty() ? "" : "+") + name;
    return out;
  }
  void note(std::string line) { lines_.push_back(std::move(line)); }
  void note(const std::string& what, std::span<const Response> responses) {
    for (const Response& r : responses) note(what + " " + (r.kind == Kind::adopt_schedule ? "a schedule" : text(r)));
  }
  void submission(std::string line) {
    std::lock_guard lock(mutex_);
    submissions_.push_back(std::move(line));
  }
  std::vector<std::string> lines_;  // the driver's
  std::mutex mutex_;
  std::vector<std::string> submissions_;
};

using Lines = std::vector<std::string>;

bool has(const Lines& lines, const std::string& line) { return std::find(lines.begin(), lines.end(), line) != lines.end(); }

TEST_CASE("an engine counts the messages of its control tree, and what it relays") {
  EngineWorld world(4, {.layout = Layout::pairs, .settings = crowded()});  // 0 has children 1 and 2, 2 has 3
  CHECK(run(world, [](Program& p) { p.expect(p.sum("a", p.rank + 1) == 10, "sum"); }).empty());
  const auto check = [&](int rank, uint64_t sent, uint64_t received) {
    CAPTURE(rank);
    const Engine::Stats stats = world.stats(rank);
    CHECK(stats.control_sent.messages == sent);
    CHECK(stats.control_received.messages == received);
    CHECK(stats.control_sent.bytes > 12 * sent);  // a header, and its payload
    CHECK(stats.control_received.bytes > 12 * received);
  };
  check(0, 2, 3);
  check(1, 1, 1);
  check(2, 3, 2);  // its own request and 3's; the answer to 3
  check(3, 1, 1);
}

TEST_CASE("observers hear what happens to an operation, in order") {
  Puppets puppets(2, Layout::one_node);
  std::vector<std::shared_ptr<Recorder>> on;
  for (int r = 0; r < 2; ++r) puppets.observers(r).add(on.emplace_back(std::make_shared<Recorder>()));
  const auto both = [&](const Request& q, int64_t more = 0) {
    for (int r = 0; r < 2; ++r) {
      Request own = q;
      if (r == 1) own.shape[0] += more;
      puppets.submit(r, std::move(own));
    }
    puppets.settle();
    for (int r = 0; r < 2; ++r) puppets.submissions(r).fence();
  };
  const Request x = Program::request(Kind::allreduce, "x", {5});
  both(x);
  CHECK(on[0]->take() == Lines{"announced x", "decided x", "agreed x", "started x notebook 20", "finished x"});
  CHECK(on[1]->take() == Lines{"announced x", "agreed x", "started x notebook 20", "finished x"});
  SUBCASE("that ranks disagree about") {
    both(Program::request(Kind::allreduce, "y", {5}), 1);
    CHECK(on[1]->take() == Lines{"announced y", "agreed y", "failed y"});
    CHECK(puppets.counted(1).errors == 1);
  }
  SUBCASE("that repeats until a schedule has it, and after that") {
    Lines lines;
    for (int step = 0; step < 8 && !has(lines, "begun 1"); ++step) {
      both(x);
      lines = on[1]->take();
    }
    CHECK(has(lines, "agreed a schedule"));
    REQUIRE(has(lines, "begun 1"));
    both(x);
    CHECK(on[1]->take() == Lines{"started x notebook 20", "finished x", "bucket x"});
    both(Program::request(Kind::broadcast, "z", {3}));
    lines = on[1]->take();
    CHECK(has(lines, "left at " + std::to_string(puppets.counted(1).scheduled)));
    CHECK(has(lines, "started z notebook 12"));
    CHECK(puppets.counted(1).schedules == 1);
    CHECK(puppets.counted(1).revocations == 1);
  }
}

TEST_CASE("observers hear by which algorithm, of submissions, of sleep and of the end") {
  for (const Layout layout : kLayouts) {
    auto recorder = std::make_shared<Recorder>();
    Lines submissions;
    {
      EngineWorld world(4, {layout});
      world.engine(1).observers().add(recorder);
      CHECK(run(world, [&](Program& p) {
        p.barrier();  // the driver follows in a later turn
        p.equal(p.sum("x", 1, 1000), 4, "x");
        // The thread may have been asleep before the observer was added; an operation without a waiter wakes
        // it, and then it has nothing to do.
        for (int i = 0; i < 10; ++i) {
          const TaskPtr later = p.sum_async("later" + std::to_string(i), 1);
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          p.wait(*later);
        }
        TaskPtr t;
        Request wrong = Program::request(Kind::allreduce, "wrong", {1});
        wrong.set = 77;
        p.expect(!p.try_submit(std::move(wrong), std::vector<std::byte>(4), &t).ok(), "an unknown set is accepted");
      }) == "");
    }
    const Lines lines = recorder->take();
    const std::string algorithm = layout == Layout::one_node ? "shm" : layout == Layout::pairs ? "hierarchical" : "recursive_doubling";
    CHECK_MESSAGE(has(lines, "started x " + algorithm + " 4000"), name_of(layout));
    CHECK(lines.back() == "ended shutdown");
    CHECK(std::count(lines.begin(), lines.end(), "ended shutdown") == 1);
    CHECK(recorder->sleeps > 0);
    CHECK(recorder->wakes >= recorder->sleeps.load());  // the observer may have been added during a sleep
    CHECK(recorder->wakes <= recorder->sleeps.load() + 1);
    submissions = recorder->take_submissions();
    CHECK(has(submissions, "submitted x"));
    CHECK(has(submissions, "refused wrong"));
    CHECK(!has(submissions, "refused x"));
  }
}

}  // namespace
