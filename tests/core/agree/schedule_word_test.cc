// A model of ranks of one node that follow a schedule and leave it. It explores every interleaving of the
// single loads and stores of their words (agree/schedule_word.h), with every moment at which programs submit or
// do something else. Each rank's engine goes through the steps of Driver::run_schedule(). For each reachable
// state the test shows: a bucket that any rank starts has been submitted by all of its members, and precedes
// the end that all agree on; all ranks find the same end, and have executed exactly the buckets before it;
// and the end can always be reached once a program has done something else, so no rank waits without end.
#include "agree/schedule_word.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>

using namespace hvd;

namespace {

constexpr int kMaxRanks = 3;
constexpr uint64_t kId = 5;

struct Model {
  const char* what;
  int ranks;
  std::vector<std::vector<int>> members;  // by bucket
  int most;  // positions that a program submits before it deviates
  unsigned leavers;  // bit r: rank r's program deviates at some time
  bool large = false;  // only with HVD_MODEL=all: millions of states
};

enum Step : uint8_t { enter, begin, publish, look, freeze, ask, seek, start, left };

struct RankState {
  uint8_t step, index;  // the engine's next step; number of words it has checked
  uint8_t submitted, deviated;  // by its program
  uint8_t ready, sent, executed, frozen, seen_deviated;  // by its engine; told: published, plus one
};
struct State {
  std::array<uint64_t, kMaxRanks> words;
  std::array<RankState, kMaxRanks> ranks;
};
static_assert(sizeof(RankState) == 9);

std::string key(const State& s, int ranks) {
  std::string k(reinterpret_cast<const char*>(s.words.data()), sizeof(uint64_t) * static_cast<size_t>(ranks));
  k.append(reinterpret_cast<const char*>(s.ranks.data()), sizeof(RankState) * static_cast<size_t>(ranks));
  return k;
}

class Explorer {
 public:
  explicit Explorer(const Model& model) : m_(model) {}

  // Returns "" or an error.
  std::string run() {
    State first{};
    for (int r = 0; r < m_.ranks; ++r) {
      first.words[r] = ScheduleWord::of(kId - 1, 3, r % 2).bits;  // left by the previous schedule, frozen or not
      first.ranks[r].step = enter;
    }
    std::vector<State> todo{first};
    number(first);
    while (!todo.empty() && wrong_.empty()) {
      const State s = todo.back();
      todo.pop_back();
      const size_t from = known_.at(key(s, m_.ranks));
      for (const State& next : successors(s)) {
        const auto [id, fresh] = number(next);
        before_[id].push_back(from);
        if (fresh) todo.push_back(next);
      }
      check(s, from);
    }
    if (wrong_.empty()) check_end();
    return wrong_;
  }
  size_t states() const { return known_.size(); }

 private:
  std::pair<size_t, bool> number(const State& s) {
    const auto [it, fresh] = known_.try_emplace(key(s, m_.ranks), known_.size());
    if (fresh) before_.emplace_back();
    return {it->second, fresh};
  }
  size_t buckets() const { return m_.members.size(); }
  bool takes_part(int rank, size_t bucket) const {
    for (int member : m_.members[bucket]) {
      if (member == rank) return true;
    }
    return false;
  }
  bool any_part(int rank) const {
    for (size_t b = 0; b < buckets(); ++b) {
      if (takes_part(rank, b)) return true;
    }
    return false;
  }
  // Models ScheduleCursor::ready(): other ranks' positions are passed, at most one round ahead.
  uint64_t ready_of(int rank, const RankState& r) const {
    if (!any_part(rank)) return kNoPart;
    uint64_t at = r.executed, own = 0;
    for (uint64_t p = 0; p < r.executed; ++p) own += takes_part(rank, p % buckets());
    for (; at < r.executed + buckets(); ++at) {
      if (takes_part(rank, at % buckets()) && ++own > r.submitted) break;
    }
    return at;
  }
  ScheduleWord own(const RankState& r, int rank, bool frozen) const {
    const uint64_t position = r.sent == 0 ? 0 : any_part(rank) ? static_cast<uint64_t>(r.sent - 1) : kNoPart;
    return ScheduleWord::of(kId, position, frozen);
  }

  std::vector<State> successors(const State& s) {
    std::vector<State> all;
    for (int r = 0; r < m_.ranks; ++r) {
      const RankState& rank = s.ranks[r];
      if (rank.step != left && rank.step != enter && !rank.deviated) {
        if (rank.submitted < m_.most && any_part(r)) {
          State next = s;
          ++next.ranks[r].submitted;
          all.push_back(next);
        }
        if (m_.leavers >> r & 1) {
          State next = s;
          next.ranks[r].deviated = 1;
          all.push_back(next);
        }
      }
      if (rank.step != left) all.push_back(turn(s, r));
    }
    return all;
  }

  // The next step of rank r's engine.
  State turn(State s, int r) {
    RankState& me = s.ranks[r];
    switch (me.step) {
      case enter: me.step = begin; break;
      case begin: {  // submissions_->progress()
        const uint64_t ready = ready_of(r, me);
        me.ready = any_part(r) ? static_cast<uint8_t>(ready) : 0;
        me.seen_deviated = me.deviated;
        me.step = publish;
        break;
      }
      case publish:
        if (!me.frozen && me.sent != me.ready + 1) {
          me.sent = me.ready + 1;
          s.words[r] = own(me, r, false).bits;
        }
        me.step = me.frozen ? ask : me.seen_deviated ? freeze : look;
        me.index = 0;
        break;
      case look:  // leaving_elsewhere()
        if (ScheduleWord{s.words[me.index]}.frozen(kId)) {
          me.step = freeze;
        } else if (++me.index == m_.ranks) {
          me.step = seek;
          me.index = 0;
        }
        break;
      case freeze:
        me.frozen = 1;
        s.words[r] = own(me, r, true).bits;
        me.step = ask;
        me.index = 0;
        break;
      case ask:  // final_position(): true if all are frozen
        if (!ScheduleWord{s.words[me.index]}.frozen(kId)) {
          me.step = seek;
          me.index = 0;
        } else if (++me.index == m_.ranks) {
          leave(s, r);
        }
        break;
      case seek:  // may_run(): true if the others are ready
        if (!any_part(r) || me.executed >= me.ready) {
          me.step = begin;
        } else if (me.index == m_.ranks) {
          // position < position_: frozen words were published before
          me.step = me.sent > me.executed + 1 ? start : begin;
        } else if (!takes_part(me.index, me.executed % buckets()) || me.index == r ||
                   ScheduleWord{s.words[me.index]}.ready(kId, me.executed)) {
          ++me.index;
        } else {
          me.step = begin;
        }
        break;
      case start:
        started(s, r);
        ++me.executed;
        me.step = begin;
        break;
      default: break;
    }
    return s;
  }

  void started(const State& s, int r) {
    const uint64_t position = s.ranks[r].executed;
    for (int member : m_.members[position % buckets()]) {
      uint64_t own = 0;
      for (uint64_t p = 0; p <= position; ++p) own += takes_part(member, p % buckets());
      if (s.ranks[member].submitted < own)
        wrong_ = "rank " + std::to_string(r) + " starts what rank " + std::to_string(member) + " has not submitted";
    }
  }
  // leave_schedule(): all words are frozen, so nothing changes while the rest is executed.
  void leave(State& s, int r) {
    std::vector<ScheduleWord> words;
    for (int i = 0; i < m_.ranks; ++i) words.push_back({s.words[i]});
    const uint64_t last = last_position(words, m_.members);
    RankState& me = s.ranks[r];
    if (any_part(r) && me.executed > last) wrong_ = "rank " + std::to_string(r) + " has carried out more than what all do";
    while (me.executed < last) {
      if (any_part(r)) started(s, r);
      ++me.executed;
    }
    me.step = left;
  }

  void check(const State& s, size_t id) {
    bool all_left = true;
    for (int r = 0; r < m_.ranks; ++r) all_left = all_left && s.ranks[r].step == left;
    if (!all_left) return;
    ends_.push_back(id);
    for (int r = 1; r < m_.ranks; ++r) {
      if (s.ranks[r].executed != s.ranks[0].executed) wrong_ = "rank " + std::to_string(r) + " ends elsewhere";
    }
  }
  // Searches backwards from the ends: states that are not reached can never end. Before any rank leaves,
  // programs may continue as they like; then one leaves.
  void check_end() {
    if (ends_.empty()) {
      wrong_ = "no end";
      return;
    }
    std::vector<bool> can(known_.size());
    std::vector<size_t> todo = ends_;
    for (size_t id : ends_) can[id] = true;
    while (!todo.empty()) {
      const size_t id = todo.back();
      todo.pop_back();
      for (size_t from : before_[id]) {
        if (!can[from]) can[from] = true, todo.push_back(from);
      }
    }
    for (bool c : can) {
      if (!c) wrong_ = "a state from which there is no end";
    }
  }

  const Model& m_;
  std::unordered_map<std::string, size_t> known_;
  std::vector<std::vector<size_t>> before_;
  std::vector<size_t> ends_;
  std::string wrong_;
};

const Model kModels[] = {
    {"two ranks, either leaves", 2, {{0, 1}, {0, 1}}, 3, 3},
    {"two ranks, one leaves", 2, {{0, 1}}, 3, 2},
    {"buckets of one rank", 2, {{0, 1}, {1}}, 3, 3},
    {"a rank without a part", 2, {{1}}, 2, 3},
    {"three ranks, one leaves", 3, {{0, 1, 2}}, 1, 1},
    {"three ranks, overlapping sets", 3, {{0, 1}, {1, 2}}, 1, 1},
    {"three ranks, any leaves, two rounds", 3, {{0, 1, 2}}, 2, 7, true},
    {"three ranks, overlapping sets, two rounds", 3, {{0, 1}, {1, 2}}, 2, 1, true},
};

}  // namespace

TEST_CASE("a model of ranks that leave a schedule on one node") {
  for (const Model& model : kModels) {
    if (model.large && !std::getenv("HVD_MODEL")) continue;
    CAPTURE(std::string(model.what));
    Explorer explorer(model);
    CHECK(explorer.run() == "");
    MESSAGE(std::string(model.what) << ": " << explorer.states() << " states");
  }
}
