// Every submitted operation ends, in whatever order programs and engines run: small scripts with every
// combination of a few deviations from the expected order, and random schedules of random scripts. Real
// drivers, see puppets.h. HVD_SURPRISES, HVD_PLAYS: more of both.
#include <doctest/doctest.h>

#include <cstdlib>

#include "../agree/requests.h"
#include "scripts.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

int number(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

Request member(const std::string& name, uint32_t size, Kind kind = Kind::allreduce, DType d = DType::int32) {
  Request q = request(name, kind, {4});
  q.dtype = d;
  q.group = "g";
  q.group_size = size;
  return q;
}

Script submitting(std::initializer_list<int> ops) {
  Script s;
  for (int op : ops) s.push_back({Line::submit, op});
  return s;
}
Script waiting(std::initializer_list<int> ops) {
  Script s;
  for (int op : ops) s.push_back({Line::wait, op});
  return s;
}
Script operator+(Script a, const Script& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A step that repeats, and what ranks do after it.
struct Scene {
  const char* what;
  std::vector<Request> requests;
  Script step;
  std::vector<Script> then;  // the last one is used for all further ranks
};

std::vector<Scene> scenes() {
  const std::vector<Request> mixed{member("a", 2), member("b", 2, Kind::allreduce, DType::int64), request("x"), request("y")};
  const Script step = submitting({0, 1}) + waiting({0, 1});
  Request join = request("", Kind::join), add = request("", Kind::add_set);
  add.splits = {0};
  std::vector<Request> with_join = mixed, with_set = mixed;
  with_join[3] = join;
  with_set[3] = add;
  return {
      {"a group of two types, then something unknown", mixed, step, {submitting({0, 1, 2}) + waiting({2, 0, 1})}},
      {"ranks that leave at different places of a step",
       mixed,
       step,
       {submitting({0, 1, 2}) + waiting({2, 0, 1}), submitting({2, 0, 1}) + waiting({0, 1, 2})}},
      {"half of a step",
       {request("a"), request("b"), request("x")},
       step,
       {submitting({0}) + waiting({0}) + submitting({1}) + waiting({1})}},
      {"a process set in the middle of a step",
       with_set,
       step,
       {submitting({0, 1, 3}) + waiting({0, 1, 3}), submitting({3, 0, 1}) + waiting({3, 1, 0})}},
      {"one joins while others go on", with_join, step, {submitting({3}) + waiting({3}), step + submitting({3}) + waiting({3})}},
      {"large allgathers, which no vote carries",
       {member("a", 2, Kind::allgather), member("b", 2, Kind::allgather, DType::uint8), request("x")},
       step,
       {submitting({0, 1, 2}) + waiting({0, 1, 2}), submitting({0, 1}) + waiting({0}) + submitting({2}) + waiting({2, 1})}},
      {"the next step begins before the last one is awaited",
       {request("a"), request("b"), request("x")},
       step,
       {submitting({0, 1}) + waiting({0}) + submitting({2}) + waiting({2, 1}), submitting({1, 2, 0}) + waiting({1, 0, 2})}},
  };
}

// Repeats the step until it runs without negotiation.
void settle_down(Puppets& puppets, const Scene& scene, const std::vector<Planned>& table) {
  const std::vector<Script> scripts(puppets.size(), scene.step);
  for (int i = 0; i < 6; ++i) {
    Play p(puppets, table, scripts);
    REQUIRE(play(p, in_turn) == "");
  }
  REQUIRE(puppets.counted(0).schedules == 1);
}

}  // namespace

TEST_CASE("every play with a few surprises, out of a schedule and back to negotiation" * doctest::test_suite("long")) {
  long plays = 0;
  for (const Scene& scene : scenes()) {
    CAPTURE(scene.what);
    for (Layout layout : kLayouts) {
      CAPTURE(name_of(layout));
      for (int size : {2, 3}) {
        if (layout == Layout::pairs && size == 2) continue;  // one node
        CAPTURE(size);
        std::vector<Script> scripts;
        std::vector<Planned> table;
        for (const Request& q : scene.requests) table.push_back({q, {}});
        for (int r = 0; r < size; ++r) scripts.push_back(scene.then[std::min<size_t>(r, scene.then.size() - 1)]);
        Surprises surprises(number("HVD_SURPRISES", size == 2 ? 2 : 1));
        do {
          Puppets puppets(size, layout);
          settle_down(puppets, scene, table);
          Play p(puppets, table, scripts);
          const std::string wrong = play(p, [&](const auto& actions, int last) { return surprises.pick(actions, last); });
          ++plays;
          CAPTURE(surprises.path());
          REQUIRE(wrong == "");
        } while (surprises.next());
      }
    }
  }
  MESSAGE(plays << " plays");
}

TEST_CASE("random plays of random jobs: everything ends, and all ranks have carried out the same") {
  const int plays = number("HVD_PLAYS", 1200);
  const int first = number("HVD_PLAY_SEED", 1);
  long schedules = 0;
  for (int seed = first; seed < first + plays; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const int size = 2 + static_cast<int>(random() % 4);
    const Layout layout = kLayouts[random() % 3];
    CAPTURE(size);
    CAPTURE(name_of(layout));
    Settings settings;
    settings.fusion_threshold = random() % 3 ? size_t{128} << 20 : random() % 2 ? 300 : 0;
    settings.groups_apart = random() % 4 == 0;
    Job job(static_cast<uint64_t>(seed) * 7919, {size});
    Puppets puppets(size, layout, settings);
    Play p(puppets, job.table, job.scripts[0]);
    const std::string wrong = play(p, [&](const std::vector<Play::Action>& actions, int last) -> size_t {
      if (last >= 0 && random() % 2) return static_cast<size_t>(last);
      const size_t i = random() % actions.size();
      return actions[i].what == Play::nudge && random() % 20 ? 0 : i;
    });
    REQUIRE(wrong == "");
    schedules += puppets.counted(0).schedules;
  }
  CHECK(schedules > plays / 4);
  MESSAGE(schedules << " schedules");
}
