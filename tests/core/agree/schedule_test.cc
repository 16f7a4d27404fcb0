// Schedules: finding the period, following it.
#include "agree/schedule.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "agree/coordinator.h"
#include "engine/operation.h"

using namespace hvd;

namespace {

Ready ready_of(const std::string& name, uint64_t fence, bool unnamed = false, int64_t elements = 4) {
  Ready r;
  r.response.names = {name};
  r.response.shapes = {{elements}};
  r.bytes = static_cast<size_t>(elements) * 4;
  r.fence = fence << kWeakFenceBits;
  r.unnamed = unnamed;
  return r;
}

// Feeds steps (strings of one-letter names; upper case: unnamed with that many elements); tells the period found after the last one.
std::string period_after(ScheduleDetector& d, const std::vector<std::string>& steps) {
  static uint64_t fence = 0;
  int number = 0;
  for (const std::string& step : steps) {
    ++fence;
    for (char c : step) {
      const bool unnamed = c < 'a';
      const Ready r =
          unnamed ? ready_of("allreduce.noname." + std::to_string(number++), fence, true, c) : ready_of(std::string(1, c), fence);
      d.feed(r, identity_of(r));
    }
  }
  std::string found;
  for (const Ready& r : d.period()) found += r.unnamed ? static_cast<char>(r.response.shapes[0][0]) : r.response.names[0][0];
  return found;
}

Request request(const std::string& name, int64_t elements = 4, uint32_t set = 0) {
  Request q;
  q.name = name;
  q.unnamed = name.rfind("allreduce.noname", 0) == 0;
  q.shape = {elements};
  q.set = set;
  return q;
}

// Buckets as lists of names.
std::shared_ptr<Schedule> schedule_of(const std::vector<std::vector<std::string>>& buckets) {
  auto s = std::make_shared<Schedule>();
  s->id = 1;
  for (const auto& names : buckets) {
    Schedule::Bucket b{{{}}, {}};
    b.parts[0].names = names;
    for (const std::string& name : names) {
      b.entries.push_back(static_cast<uint32_t>(s->entries.size()));
      s->entries.push_back({0, Kind::allreduce, name, request(name).unnamed});
    }
    s->buckets.push_back(b);
  }
  return s;
}

struct Follower {
  explicit Follower(std::shared_ptr<Schedule> s, const std::vector<std::string>& foreign = {}) : schedule(std::move(s)) {
    for (const auto& e : schedule->entries) requests.push_back(request(e.name));
    std::vector<const Request*> pointers;
    for (const Request& q : requests) {
      pointers.push_back(std::find(foreign.begin(), foreign.end(), q.name) == foreign.end() ? &q : nullptr);
    }
    cursor = std::make_unique<ScheduleCursor>(schedule, pointers);
  }
  bool offer(const std::string& name, int64_t elements = 4) {
    tokens.push_back(std::make_unique<std::string>(name));
    bool completed = false;
    const Request q = request(name, elements);
    return cursor->offer(cursor->find(q), q, tokens.back().get(), &completed);
  }
  std::string take() {
    std::vector<void*> taken;
    cursor->take(&taken);
    std::string all;
    for (void* t : taken) all += t ? *static_cast<std::string*>(t) : "-";
    return all;
  }
  bool stuck() const { return cursor->stuck(tokens.back().get()); }
  std::shared_ptr<Schedule> schedule;
  std::vector<Request> requests;
  std::vector<std::unique_ptr<std::string>> tokens;
  std::unique_ptr<ScheduleCursor> cursor;
};

}  // namespace

TEST_CASE("which histories have a period") {
  struct Case {
    std::vector<std::string> steps;
    const char* period;
  };
  const Case cases[] = {
      {{"x", "abc", "abc"}, "abc"},
      {{"x", "abc", "bca"}, "bca"},      // ranks race
      {{"abc", "abc"}, ""},              // where the first began is not known
      {{"x", "abc", "abd"}, ""},
      {{"x", "ab", "ab", "c"}, ""},
      {{"x", "AB", "AB"}, "AB"},
      {{"x", "AB", "BA"}, ""},           // unnamed ones cannot change places
      {{"x", "aA", "Aa"}, "Aa"},
      {{"x", "abab"}, ""},               // no fence in the middle
      {{"x", "ab", "c", "ab", "c"}, "abc"},
      {{"x", "a", "a"}, "a"},
      {{"x", "aab", "aab"}, "aab"},
      {{"x"}, ""},
      {{}, ""},
  };
  for (const Case& c : cases) {
    ScheduleDetector d(100);
    std::string all;
    for (auto& s : c.steps) all += s + " ";
    CAPTURE(all);
    CHECK(period_after(d, c.steps) == c.period);
  }
}

TEST_CASE("the capacity bounds the period, a reset forgets") {
  ScheduleDetector small(2), none(0), d(10);
  CHECK(period_after(small, {"x", "abc", "abc", "abc"}) == "");
  CHECK(period_after(small, {"ab", "ab", "ab"}) == "ab");
  CHECK(period_after(none, {"x", "a", "a"}) == "");
  CHECK(period_after(d, {"x", "ab"}) == "");
  d.reset();
  CHECK(period_after(d, {"ab"}) == "");
  CHECK(period_after(d, {"ab", "ab"}) == "ab");
  for (int i = 0; i < 25; ++i) CHECK(period_after(d, {"cd", std::string(1, static_cast<char>('A' + i))}) == "");  // long histories are cut
  CHECK(period_after(d, {"cd", "cd"}) == "cd");
}

TEST_CASE("after a schedule that did not last only longer periods are proposed, and none that merely repeats it") {
  ScheduleDetector d(30);
  CHECK(period_after(d, {"x", "a", "a"}) == "a");
  d.note_revoked(3, 1);
  // Each operation is waited for, as by a program of blocking calls: b a a a b a a a.
  CHECK(period_after(d, {"a", "a", "a", "a", "a", "a"}) == "");
  CHECK(period_after(d, {"b", "a", "a", "a", "b", "a", "a"}) == "abaa");
  d.note_revoked(1000, 4);  // this one lasted
  CHECK(period_after(d, {"x", "a", "a"}) == "a");
  d.note_revoked(3, 1);
  size_t steps = 0;  // the program may have become another one, so short periods get another chance
  while (period_after(d, {"a"}).empty() && steps < 1000) ++steps;
  CHECK(steps > 10);
  CHECK(steps < 200);
}

TEST_CASE("a barrier after every so many equal operations: the period with the barrier in it is found") {
  ScheduleDetector d(100);
  const std::vector<std::string> round{"b", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a",
                                       "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"};
  for (int i = 0; i < 2; ++i) {
    CHECK(period_after(d, {"b", "a", "a", "a"}) == "a");  // three negotiated, the others by the schedule, until the barrier ends it
    d.note_revoked(17, 1);
  }
  std::string found;
  int rounds = 0;
  for (; found.empty() && rounds < 4; ++rounds) {
    for (const std::string& step : round) {
      if (found.empty()) found = period_after(d, {step});
    }
  }
  CHECK(found.size() == round.size());
  CHECK(std::count(found.begin(), found.end(), 'b') == 1);
  // Where there is no such period the search ends, and comes again after ever more schedules.
  d.note_revoked(17, round.size());
  int searches[2] = {0, 0};
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 100; ++i) {
      d.note_revoked(17, 1);
      const bool searching = period_after(d, {std::string(1, static_cast<char>('c' + i % 20)), "a", "a", "a"}).empty();
      searches[half] += searching;
      for (int k = 0; searching && k < 200 && period_after(d, {"a"}).empty(); ++k) {
      }
    }
  }
  CHECK(searches[0] > searches[1]);
  CHECK(searches[0] < 10);
  CHECK(searches[1] > 0);
}

TEST_CASE("no period in which a name stands for different operations; what tells operations apart") {
  ScheduleDetector d(100);
  for (uint64_t i = 0; i < 60; ++i) {
    const Ready r = ready_of("x", i, false, i % 2 ? 10 : 20);
    d.feed(r, identity_of(r));
    CHECK(d.period().empty());
  }
  Ready plain = ready_of("x", 0), coded = plain;
  coded.response.wire = WireFormat::int8;
  CHECK(identity_of(plain) != identity_of(coded));
}

TEST_CASE("schedules that keep failing make the next proposal wait longer each time") {
  ScheduleDetector d(10);
  for (int i = 0; i < 9; ++i) d.note_revoked(1, 1);
  size_t before = 0;
  for (int i = 0; i < 3; ++i) {
    size_t steps = 0;
    while (period_after(d, {"a"}).empty() && steps < 10000) ++steps;
    CHECK(steps > before);
    before = steps;
    d.note_revoked(1, 1);
  }
}

TEST_CASE("a schedule is the period, fused") {
  std::vector<Ready> period{ready_of("a", 1), ready_of("b", 1), ready_of("c", 2), ready_of("d", 1)};
  const Schedule s = make_schedule(9, period, {100, false});
  CHECK(s.id == 9);
  REQUIRE(s.buckets.size() == 2);
  CHECK(s.buckets[0].parts[0].names == std::vector<std::string>{"a", "b", "d"});
  CHECK(s.buckets[0].entries == std::vector<uint32_t>{0, 1, 3});
  CHECK(s.buckets[1].entries == std::vector<uint32_t>{2});
}

TEST_CASE("a group is one bucket, whatever it takes to carry it out, and no schedule begins within one") {
  auto member = [](const std::string& name, uint64_t unit, DType dtype, Kind kind = Kind::allreduce) {
    Ready r = ready_of(name, 1);
    r.unit = unit;
    r.group_size = 2;
    r.response.dtype = dtype;
    r.response.kind = kind;
    return r;
  };
  const DType f = DType::float32, d = DType::float64;
  auto plan = [](const std::vector<Ready>& period, FuseOptions options = {}) {
    std::string text;
    for (const auto& bucket : make_schedule(1, period, options).buckets) {
      text += '[';
      for (const auto& part : bucket.parts) {
        for (const auto& name : part.names) text += name;
        text += ' ';
      }
      text.back() = ']';
    }
    return text;
  };
  CHECK(plan({member("a", 1, f), member("b", 1, d), ready_of("x", 1), member("c", 2, f), member("e", 2, f)}) == "[a b][xce]");
  CHECK(plan({ready_of("x", 1), member("a", 1, f), member("b", 1, d), member("c", 1, f)}) == "[x][ac b]");
  CHECK(plan({ready_of("x", 1), member("a", 1, f), member("b", 1, f)}, {40, false}) == "[x][ab]");  // none of it fits beside x
  CHECK(plan({member("a", 1, f), member("b", 1, f)}, {0, false}) == "[ab]");
  CHECK(plan({member("a", 1, f), member("b", 1, f), member("c", 2, f)}, {1000, true}) == "[ab][c]");
  CHECK(plan({member("a", 1, f, Kind::allgather), member("b", 1, f, Kind::allgather)}) == "[ab]");
  CHECK(plan({member("a", 1, f, Kind::reducescatter), member("b", 1, d, Kind::reducescatter)}) == "[a b]");
  const Schedule s = make_schedule(1, {ready_of("x", 1), member("a", 1, f), member("b", 1, d), member("c", 1, f)}, {});
  CHECK(s.buckets[1].entries == std::vector<uint32_t>{1, 3, 2});

  ScheduleDetector detector(16);
  for (uint64_t fence = 1, unit = 10; fence < 8; fence += 2, ++unit) {
    Ready a = member("a", unit, f), b = member("b", unit, f);
    a.fence = fence << kWeakFenceBits;
    b.fence = (fence + 1) << kWeakFenceBits;
    detector.feed(a, identity_of(a));
    detector.feed(b, identity_of(b));
    CHECK(detector.period().size() % 2 == 0);
  }
  CHECK(detector.period().size() == 2);
  Ready longer = member("a", 99, f);
  const uint64_t before = identity_of(longer);
  longer.group_size = 3;
  CHECK(identity_of(longer) != before);
}

TEST_CASE("following: buckets are ready in order, at most one round ahead") {
  Follower f(schedule_of({{"a", "b"}, {"c"}}));
  CHECK(f.offer("c"));
  CHECK(f.cursor->ready() == 0);
  CHECK(f.stuck());
  CHECK(f.offer("a"));
  CHECK(f.stuck());
  CHECK(f.offer("b"));
  CHECK(f.cursor->ready() == 2);
  CHECK(!f.stuck());
  for (const char* name : {"a", "b", "c"}) CHECK(f.offer(name));
  CHECK(f.cursor->ready() == 2);
  CHECK(f.take() == "ab");
  CHECK(f.cursor->ready() == 3);
  CHECK(f.take() == "c");
  CHECK(f.cursor->ready() == 4);
  CHECK(f.cursor->outstanding().size() == 3);
  CHECK(f.take() == "ab");
  CHECK(f.take() == "c");
  CHECK(f.cursor->executed() == 4);
  CHECK(f.cursor->outstanding().empty());
}

TEST_CASE("following: what does not fit is refused and leaves no trace") {
  Follower f(schedule_of({{"a"}}));
  CHECK(!f.offer("z"));
  CHECK(!f.offer("a", 5));
  CHECK(!f.offer("allreduce.noname.0"));
  CHECK(f.cursor->outstanding().empty());
  CHECK(f.cursor->ready() == 0);
}

TEST_CASE("following: unnamed operations are matched in the order of their numbers") {
  auto s = schedule_of({{"allreduce.noname.12", "allreduce.noname.9"}, {"allreduce.noname.10"}});
  Follower f(s);
  for (const char* n : {"allreduce.noname.20", "allreduce.noname.21"}) CHECK(f.offer(n));
  CHECK(f.cursor->ready() == 0);  // 20 is 9, 21 is 10; 12 is missing
  CHECK(f.offer("allreduce.noname.22"));
  CHECK(f.cursor->ready() == 2);
  CHECK(f.take() == "allreduce.noname.22allreduce.noname.20");
  CHECK(f.take() == "allreduce.noname.21");
}

TEST_CASE("following: buckets of others are passed, a rank without any part says so") {
  auto s = schedule_of({{"a"}, {"b"}});
  Follower some(s, {"a"}), none(s, {"a", "b"});
  CHECK(none.cursor->ready() == kNoPart);
  CHECK(some.cursor->ready() == 1);
  CHECK(some.offer("b"));
  CHECK(some.take() == "-");
  CHECK(some.take() == "b");
}

TEST_CASE("an operation completes once for all sleepers, or they give up in time") {
  Operation op;
  CHECK(!op.sleep_until(Deadline::after(0.01)));
  std::vector<std::thread> sleepers;
  std::atomic<int> woken{0};
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] { woken += op.sleep_until(Deadline::after(10)); });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  op.complete(Status(Code::timeout, "late"));
  for (auto& t : sleepers) t.join();
  CHECK(woken == 4);
  CHECK(op.done());
  CHECK(op.status().code() == Code::timeout);
  CHECK(op.sleep_until(Deadline::after(0)));
}
