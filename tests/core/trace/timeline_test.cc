// Timelines with engines.
#include "trace/timeline.h"

#include <doctest/doctest.h>

#include <set>
#include <thread>

#include "engine/harness_engine.h"
#include "files.h"
#include "trace/mailbox.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// The events of one tensor, or of pid 0, in file order: "B NAME", "E", "X 1", "i NAME".
struct Trace {
  explicit Trace(const std::string& path) {
    const auto json = parsed(path);
    require(json && json->type == Json::Type::array, path + " is no array: " + contents(path));
    events = json->items;
    for (const Json& e : events) {
      require(e.type == Json::Type::object, "an event is no object");
      if (e["ph"].text == "M" && e["name"].text == "process_name") pids[e["args"]["name"].text].push_back(e["pid"].number);
    }
  }
  std::vector<const Json*> of(const std::string& name) const {
    std::vector<const Json*> out;
    const auto it = pids.find(name);
    if (it == pids.end()) return out;
    for (const Json& e : events) {
      if (e["ph"].text != "M" && std::count(it->second.begin(), it->second.end(), e["pid"].number)) out.push_back(&e);
    }
    return out;
  }
  std::string line(const std::string& name) const {
    std::string out;
    for (const Json* e : of(name)) out += (*e)["ph"].text + ((*e).has("name") ? " " + (*e)["name"].text : "") + "; ";
    return out;
  }
  // Spans nest and times never go back, on each thread of each tensor. Spans may be open at the end.
  void check() const {
    std::map<std::pair<double, double>, std::pair<int, double>> at;
    for (const Json& e : events) {
      const std::string& ph = e["ph"].text;
      if (ph == "M") continue;
      auto& [depth, last] = at[{e["pid"].number, e["tid"].number}];
      CHECK(e["ts"].type == Json::Type::number);
      CHECK(e["ts"].number >= last);
      last = e["ts"].number;
      if (ph == "B") ++depth;
      if (ph == "E") --depth;
      CHECK(depth >= 0);
    }
  }
  size_t count(const std::string& ph, const std::string& name) const {
    return static_cast<size_t>(
        std::count_if(events.begin(), events.end(), [&](const Json& e) { return e["ph"].text == ph && e["name"].text == name; }));
  }
  std::vector<Json> events;
  std::map<std::string, std::vector<double>> pids;
};

// A timeline on each rank of a world.
struct Timelines {
  explicit Timelines(EngineWorld& world, const std::function<void(int, TimelineOptions&)>& adapt = {}) : world(world) {
    for (int r = 0; r < world.size(); ++r) {
      TimelineOptions o;
      o.path = path(r);
      o.rank = r;
      o.size = world.size();
      o.host = "host" + std::to_string(r);
      o.say = [engine = &world.engine(r)](ObserverMessage note) { (void)engine->post_message(std::move(note)); };
      o.log = [this](LogLevel, const std::string& text) {
        std::lock_guard lock(mutex);
        logged.push_back(text);
      };
      if (adapt) adapt(r, o);
      int error = 0;
      const Status s = Timeline::start(std::move(o), &on.emplace_back(), &error);
      require(s.ok(), s.message());
      world.engine(r).observers().add(on.back());
    }
  }
  void close() {
    for (size_t r = 0; r < on.size(); ++r) {
      world.engine(static_cast<int>(r)).observers().remove(on[r].get());
      on[r]->close();
    }
  }
  std::string path(int rank) { return folder / "t" + std::to_string(rank) + ".json"; }
  EngineWorld& world;
  Folder folder;
  std::vector<std::shared_ptr<Timeline>> on;
  std::mutex mutex;
  std::vector<std::string> logged;
};

TEST_CASE("what ranks do is in their files: negotiation, execution, schedules, errors") {
  for (const Layout layout : kLayouts) {
    EngineWorld world(4, {layout});
    Timelines timelines(world, [](int, TimelineOptions& o) { o.mark_cycles = true; });
    CHECK(run(world, [&](Program& p) {
      p.barrier();
      p.equal(p.sum("allreduce.\"x\"", 1, 6), 4, "x");
      TaskPtr bad = p.sum_async("bad", 1, p.rank == 0 ? 2 : 3);
      p.expect(!p.finish(*bad).ok(), "tensors of two shapes are reduced");
      p.wait(*p.submit(Program::request(Kind::allgather, "g", {2}), Program::bytes_of(std::vector<int32_t>(2, p.rank))));
      for (int step = 0; step < 30; ++step) {
        TaskPtr a = p.sum_async("a", 1), b = p.sum_async("b", 1, 100);
        p.wait(*a);
        p.wait(*b);
      }
      const uint32_t set = p.add_set({0, 2});
      if (p.rank % 2 == 0) p.equal(p.sum("in a set", 1, 1, set), 2, "set");
      p.barrier();
    }) == "");
    timelines.close();
    std::map<double, std::set<std::string>> names;  // by number
    for (int r = 0; r < 4; ++r) {
      const Trace trace(timelines.path(r));
      trace.check();
      CHECK(contents(timelines.path(r)).back() == '\n');
      std::string x = trace.line("allreduce.\"x\"");
      if (r == 0) {
        // The order of the other events is undefined.
        for (int other = 0; other < 4; ++other) CHECK(x.find("X " + std::to_string(other) + "; ") != std::string::npos);
        CHECK(x.find("B NEGOTIATE_ALLREDUCE; X ") == 0);
      } else {
        CHECK(x.find("B NEGOTIATE_ALLREDUCE; X " + std::to_string(r) + "; E; ") == 0);
      }
      CHECK(x.find("E; B ALLREDUCE; B QUEUE; E; B GLOO_ALLREDUCE; E; E; ") != std::string::npos);
      const auto of_x = trace.of("allreduce.\"x\"");
      CHECK((*of_x.back())["args"]["dtype"].text == "int32");
      CHECK((*of_x.back())["args"]["shape"].text == "[6]");
      CHECK(trace.line("bad").find("E; i FAILED; ") != std::string::npos);
      CHECK(trace.line("g").find("B ALLOCATE_OUTPUT; E; B GLOO_ALLGATHER; E; E; ") != std::string::npos);
      CHECK(trace.count("B", "SCHEDULE") >= 1);
      CHECK(trace.count("B", "ROUND") >= 10);
      CHECK(trace.count("i", "CYCLE_START") > 0);
      CHECK(trace.of("in a set").empty() == (r % 2 != 0 && r != 0));
      const auto of_a = trace.of("a");
      CHECK(std::count_if(of_a.begin(), of_a.end(), [](const Json* e) { return (*e)["name"].text == "ALLREDUCE"; }) == 30);
      // In schedules, too, the time of this rank's submission is known.
      CHECK(std::count_if(of_a.begin(), of_a.end(), [](const Json* e) { return (*e)["name"].text == "QUEUE"; }) == 30);
      // Negotiated less often than executed.
      CHECK(std::count_if(of_a.begin(), of_a.end(), [](const Json* e) { return (*e)["name"].text == "NEGOTIATE_ALLREDUCE"; }) < 20);
      for (const std::string name : {"a", "b", "g", "allreduce.\"x\""}) {
        for (const Json* e : trace.of(name)) {
          if ((*e)["args"].has("number")) names[(*e)["args"]["number"].number].insert(name);
        }
      }
    }
    // All ranks give an operation the same number.
    std::map<std::string, int> times;
    for (const auto& [number, of] : names) {
      for (const std::string& name : of) ++times[name];
    }
    CHECK(times["a"] == 30);
    CHECK(times["g"] == 1);
    CHECK(timelines.logged.empty());
  }
}

TEST_CASE("clocks of other hosts are compared with rank 0's") {
  EngineWorld world(2, {Layout::apart});
  auto box =
      std::make_shared<Mailbox>(0, [engine = &world.engine(0)](ObserverMessage note) { (void)engine->post_message(std::move(note)); });
  world.engine(0).observers().add(box);
  Timelines timelines(world, [](int r, TimelineOptions& o) { o.clock_of_rank0 = r == 0; });
  CHECK(run(world, [&](Program& p) {
    for (int i = 0; i < 30; ++i) {
      p.equal(p.sum("x" + std::to_string(i), 1), 2, "x");
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }) == "");
  timelines.close();
  const Trace other(timelines.path(1));
  REQUIRE(other.count("M", "clock_sync") >= 1);
  Json best;
  for (const Json& e : other.events) {
    if (e["name"].text != "clock_sync") continue;
    best = e["args"];
    CHECK(best["error_ns"].number > 0);
    // It is the same clock.
    CHECK(std::abs(best["offset_ns"].number) <= best["error_ns"].number);
  }
  CHECK(Trace(timelines.path(0)).count("M", "clock_sync") == 1);
  Mailbox::Letter letter;
  CHECK(!box->take(&letter, Deadline::after(0)));
}

TEST_CASE("what finds no room is counted and said") {
  EngineWorld world(2);
  Timelines timelines(world, [](int, TimelineOptions& o) {
    o.most_bytes = 20'000;
    o.between_writes = 0.02;
  });
  CHECK(run(world, [&](Program& p) {
    for (int step = 0; step < 3000; ++step) p.equal(p.sum("again", 1), 2, "again");
    // On a busy machine, the writer may take a second to make room.
    for (int round = 0; round < 100; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      p.equal(p.sum("later", 1), 2, "later");
    }
  }) == "");
  timelines.close();
  for (int r = 0; r < 2; ++r) {
    const Trace trace(timelines.path(r));
    trace.check();
    double lost = 0;
    for (const Json& e : trace.events) lost += e["name"].text == "LOST" ? e["args"]["events"].number : 0;
    CHECK(lost > 0);
    CHECK(lost == static_cast<double>(timelines.on[static_cast<size_t>(r)]->lost()));
    CHECK(trace.line("later").find("GLOO_ALLREDUCE") != std::string::npos);
  }
}

TEST_CASE("only some steps, or only the last seconds") {
  EngineWorld world(2);
  Timelines timelines(world, [](int r, TimelineOptions& o) {
    o.between_writes = 0.005;
    if (r == 0) o.first_step = 10, o.end_step = 12;
    if (r == 1) o.keep = 0.05;
  });
  CHECK(timeline_before("/a.b/t.json") == "/a.b/t.before.json");
  CHECK(timeline_before("/a.b/t") == "/a.b/t.before");
  CHECK(timeline_before(".t") == ".t.before");
  // Until rank 1 has replaced its file of earlier events, and so lost the first ones.
  std::set<std::filesystem::file_time_type> replaced;
  size_t steps = 0;
  CHECK(run(world, [&](Program& p) {
    for (int step = 0; p.sum("goes on", step < 100 || (p.rank == 1 && replaced.size() < 2)) > 0; ++step) {
      timelines.on[static_cast<size_t>(p.rank)]->step(step);
      p.equal(p.sum("again", 1), 2, "again");
      std::error_code none_yet;
      if (p.rank != 1) continue;
      ++steps;
      if (const auto time = std::filesystem::last_write_time(timeline_before(timelines.path(1)), none_yet); !none_yet)
        replaced.insert(time);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }) == "");
  timelines.close();
  const Trace some(timelines.path(0));
  some.check();
  CHECK(some.count("B", "STEP") == 2);
  const auto of = some.of("again");
  CHECK(std::count_if(of.begin(), of.end(), [](const Json* e) { return (*e)["name"].text == "ALLREDUCE"; }) == 2);
  const Trace last(timelines.path(1)), before(timeline_before(timelines.path(1)));
  last.check();
  before.check();
  CHECK(last.count("B", "ALLREDUCE") + before.count("B", "ALLREDUCE") < 2 * steps);
  CHECK(before.count("B", "ALLREDUCE") > 0);
  CHECK(last.count("M", "horovod") == 1);
  CHECK(timelines.logged.empty());
}

}  // namespace
