// The flight recorder's ring: recorded events, and reading while it is written.
#include "trace/recorder.h"

#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "engine/harness_engine.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

using What = FlightRecorder::What;

Request named_request(const std::string& name, std::vector<int64_t> shape = {2}) {
  Request q;
  q.name = name;
  q.shape = std::move(shape);
  return q;
}

TEST_CASE("what an engine does is recorded: announced, carried out, failed, the schedule, the end") {
  EngineWorld world(2);
  auto recorder = std::make_shared<FlightRecorder>(1000);
  world.engine(1).observers().add(recorder);
  const int64_t before = monotonic_ns();
  CHECK(run(world, [&](Program& p) {
    p.barrier();
    p.equal(p.sum("first", 1, 1000), 2, "first");
    TaskPtr bad = p.sum_async("bad", 1, p.rank == 0 ? 2 : 3);
    p.expect(!p.finish(*bad).ok(), "tensors of two shapes are reduced");
    for (int step = 0; step < 20; ++step) p.equal(p.sum("again", 1, 7), 2, "again");
    p.equal(p.sum("other", 1), 2, "other");
  }) == "");
  world.engine(1).shutdown("");
  const auto line = recorder->line();
  std::map<std::string, std::vector<FlightRecorder::Entry>> by;
  uint64_t last = 0;
  for (const auto& e : recorder->last(1000)) {
    CHECK((last == 0 || e.number == last + 1));
    last = e.number;
    CHECK(line.ns(e.begin) >= before - 1'000'000);
    CHECK(line.ns(e.end) <= monotonic_ns() + 1'000'000);
    CHECK(e.begin <= e.end);
    by[std::string(name_of(e.what)) + " " + e.text()].push_back(e);
  }
  REQUIRE(by["announced first"].size() == 1);
  REQUIRE(by["carried out first"].size() == 1);
  const auto& first = by["carried out first"].front();
  CHECK(first.begin < first.end);
  CHECK(first.bytes == 4000);
  CHECK(first.dimensions == 1);
  CHECK(first.shape[0] == 1000);
  CHECK(first.kind == Kind::allreduce);
  CHECK(first.dtype == DType::int32);
  CHECK(first.count == 1);
  CHECK(first.schedule == 0);
  CHECK(by["failed bad"].size() == 1);
  CHECK(by["carried out again"].size() == 20);
  CHECK(by["announced again"].size() < 20);
  REQUIRE(by["schedule begun "].size() >= 1);
  CHECK(by["carried out again"].back().schedule == by["schedule begun "].back().schedule);
  CHECK(by["schedule ended "].size() == by["schedule begun "].size());
  CHECK(by["carried out other"].front().schedule == 0);
  CHECK(recorder->last(1000).back().what == What::ended);
}

TEST_CASE("the ring keeps the last ones, and cuts names and shapes that are too long") {
  FlightRecorder recorder(8);
  CHECK(recorder.last(100).empty());
  for (int i = 0; i < 20; ++i) recorder.requested(std::vector<Request>{named_request("n" + std::to_string(i))});
  auto entries = recorder.last(100);
  REQUIRE(entries.size() == 8);
  CHECK(entries.front().text() == "n12");
  CHECK(entries.back().text() == "n19");
  entries = recorder.last(3);
  REQUIRE(entries.size() == 3);
  CHECK(entries.front().text() == "n17");
  recorder.requested(std::vector<Request>{named_request(std::string(1000, 'x'), {1, 2, 3, 4, 5, 6})});
  entries = recorder.last(1);
  CHECK(entries[0].text() == std::string(FlightRecorder::Entry::kName, 'x'));
  CHECK(entries[0].dimensions == 6);
  CHECK(entries[0].shape == std::array<int64_t, 4>{1, 2, 3, 4});
}

TEST_CASE("whoever reads while it is written sees whole entries only") {
  FlightRecorder recorder(4);
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 200'000; ++i) {
      const std::string name(static_cast<size_t>(1 + i % 60), static_cast<char>('a' + i % 26));
      recorder.requested(std::vector<Request>{named_request(name, {i, i, i, i})});
    }
    done = true;
  });
  size_t seen = 0, torn = 0;
  while (!done) {
    for (const auto& e : recorder.last(4)) {
      ++seen;
      const auto i = static_cast<size_t>(e.shape[0]);
      torn += e.number != i || e.shape[3] != e.shape[0] || e.text() != std::string(1 + i % 60, static_cast<char>('a' + i % 26));
    }
  }
  writer.join();
  CHECK(torn == 0);
  CHECK(seen > 0);
}

}  // namespace
