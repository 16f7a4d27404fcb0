// Following a schedule.
#include "agree/schedule_cursor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>

#include "agree/schedule_word.h"

using namespace hvd;

namespace {

Request scheduled_request(const std::string& name, int64_t elements = 4, uint32_t set = 0) {
  Request q;
  q.name = name;
  q.unnamed = name.rfind("allreduce.noname", 0) == 0;
  q.shape = {elements};
  q.set = set;
  return q;
}

// Makes a schedule from buckets given as lists of names.
std::shared_ptr<Schedule> schedule_of(const std::vector<std::vector<std::string>>& buckets) {
  auto s = std::make_shared<Schedule>();
  s->id = 1;
  for (const auto& names : buckets) {
    Schedule::Bucket b{{{}}, {}};
    b.parts[0].names = names;
    for (const std::string& name : names) {
      b.entries.push_back(static_cast<uint32_t>(s->entries.size()));
      s->entries.push_back({0, Kind::allreduce, name, scheduled_request(name).unnamed});
    }
    s->buckets.push_back(b);
  }
  return s;
}

struct Follower {
  explicit Follower(std::shared_ptr<Schedule> s, const std::vector<std::string>& foreign = {}) : schedule(std::move(s)) {
    for (const auto& e : schedule->entries) requests.push_back(scheduled_request(e.name));
    std::vector<const Request*> pointers;
    for (const Request& q : requests) {
      pointers.push_back(std::find(foreign.begin(), foreign.end(), q.name) == foreign.end() ? &q : nullptr);
    }
    cursor = std::make_unique<ScheduleCursor>(schedule, pointers);
  }
  bool offer(const std::string& name, int64_t elements = 4) {
    tokens.push_back(std::make_unique<std::string>(name));
    bool completed = false;
    const Request q = scheduled_request(name, elements);
    return cursor->offer(cursor->find(q), q, tokens.back().get(), &completed);
  }
  std::string take() {
    std::vector<void*> tensors;
    cursor->take(&tensors);
    std::string all;
    for (void* t : tensors) all += t ? *static_cast<std::string*>(t) : "-";
    return all;
  }
  bool stuck() const { return cursor->stuck(tokens.back().get()); }
  std::shared_ptr<Schedule> schedule;
  std::vector<Request> requests;
  std::vector<std::unique_ptr<std::string>> tokens;
  std::unique_ptr<ScheduleCursor> cursor;
};

}  // namespace

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

TEST_CASE("following: only a name that comes several times in a round is matched by its order") {
  Follower f(schedule_of({{"a", "b"}, {"a"}, {"allreduce.noname.1"}}));
  std::vector<bool> repeated;
  for (uint32_t entry = 0; entry < 4; ++entry) repeated.push_back(f.cursor->repeated(entry));
  CHECK(repeated == std::vector<bool>{true, false, true, true});
  // The first use of "a" is not complete when the second would begin.
  const Request a = scheduled_request("a");
  CHECK(f.cursor->find(a) == 0);
  CHECK(f.offer("a"));
  CHECK(f.cursor->find(a) == 2);
  CHECK(f.cursor->busy(2));
  CHECK(f.offer("b"));
  CHECK(f.take() == "ab");
  CHECK(f.cursor->busy(2));
  f.cursor->finish(0);
  CHECK(!f.cursor->busy(2));
  CHECK(f.cursor->busy(1));
}
