// Scripts of ranks' actions, and ways to interleave them: all interleavings with a bounded number of
// deviations, or random ones.
#pragma once
#include <random>
#include <string>
#include <vector>

#include "jobs.h"
#include "puppets.h"

namespace hvd::testing {

// Puppets that run scripts. An action is the smallest unit of work of a rank's program or engine.
class Play {
 public:
  enum What { program, engine, nudge };
  struct Action {
    int rank;
    What what;
    bool operator==(const Action&) const = default;
  };

  Play(Puppets& puppets, const std::vector<Planned>& table, std::vector<Script> scripts)
      : puppets_(puppets), table_(table), scripts_(std::move(scripts)), ranks_(puppets.size()) {
    for (Rank& r : ranks_) r.ops.resize(table.size());
  }

  // Actions that are possible and could change something. Nudges stand for passing time, so they come last.
  std::vector<Action> possible() {
    std::vector<Action> all;
    for (int r = 0; r < puppets_.size(); ++r) {
      if (program_can(r)) all.push_back({r, program});
      if (ranks_[r].dirty) all.push_back({r, engine});
    }
    for (int r = 0; r < puppets_.size(); ++r) {
      if (blocked(r) && ranks_[r].nudges < 2) all.push_back({r, nudge});
    }
    return all;
  }

  void act(const Action& a) {
    Rank& rank = ranks_[a.rank];
    bool moved = true;
    if (a.what == program) {
      const Line& line = scripts_[a.rank][rank.at];
      if (line.what == Line::submit) {
        rank.ops[line.op].push_back(puppets_.submit(a.rank, table_[line.op].request_on(a.rank)));
        ++rank.at;
      } else if (rank.ops[line.op].back()->done()) {
        ++rank.at;
        rank.waits = false;
      } else {
        puppets_.submissions(a.rank).fence();
        rank.ops[line.op].back()->awaited.store(true);
        rank.waits = true;
      }
      rank.nudges = 0;
      rank.dirty = true;
      return;
    }
    if (a.what == nudge) {
      moved = puppets_.submissions(a.rank).nudge(*rank.ops[scripts_[a.rank][rank.at].op].back(), rank.nudges == 1);
      ++rank.nudges;
      rank.dirty |= moved;
      return;
    }
    moved = puppets_.step(a.rank);
    if (moved) {
      for (Rank& r : ranks_) r.dirty = true;
      for (Rank& r : ranks_) r.nudges = 0;
    } else {
      rank.dirty = false;
    }
  }

  // Runs turns of all ranks until nothing changes: a turn that only forwards messages does not report
  // progress.
  bool catch_up() {
    if (!puppets_.settle()) return false;
    for (Rank& r : ranks_) r.dirty = true, r.nudges = 0;
    return true;
  }
  // "" if everything has ended as it should, and equally on all ranks.
  std::string verdict() {
    for (int r = 0; r < puppets_.size(); ++r) {
      if (ranks_[r].at >= scripts_[r].size()) continue;
      const int op = scripts_[r][ranks_[r].at].op;
      return "rank " + std::to_string(r) + " waits for ever, for operation " + std::to_string(op) + " '" + table_[op].like.name +
             "'; rank 0 knows of " + std::to_string(puppets_.negotiator().keys().size()) + " that wait";
    }
    for (size_t i = 0; i < table_.size(); ++i) {
      std::vector<const Status*> firsts;  // by the number of earlier uses; ranks that stop early have fewer
      for (Rank& r : ranks_) {
        for (size_t k = 0; k < r.ops[i].size(); ++k) {
          if (!r.ops[i][k]->done()) return "operation " + std::to_string(i) + " is never done";
          const Status& s = r.ops[i][k]->status();
          if (firsts.size() == k) firsts.push_back(&s);
          if (s.code() != firsts[k]->code())
            return "operation " + std::to_string(i) + " ends differently: " + s.message() + " / " + firsts[k]->message();
        }
      }
    }
    return puppets_.disagreement();
  }

 private:
  struct Rank {
    size_t at = 0;
    bool waits = false;  // the program has begun to wait
    bool dirty = true;  // its engine may have work
    int nudges = 0;
    std::vector<std::vector<OperationPtr>> ops;  // by table index, and number of earlier uses
  };
  bool blocked(int r) const {
    const Rank& rank = ranks_[r];
    return rank.waits && !rank.ops[scripts_[r][rank.at].op].back()->done();
  }
  bool program_can(int r) const { return ranks_[r].at < scripts_[r].size() && !blocked(r); }

  Puppets& puppets_;
  const std::vector<Planned>& table_;
  const std::vector<Script> scripts_;
  std::vector<Rank> ranks_;
};

// Runs to the end. pick(actions, last) returns an index into `actions`, the possible actions; `last`: index
// of the previous action if it is possible again, else -1.
template <class Pick>
std::string play(Play& p, Pick pick) {
  Play::Action before{-1, Play::engine};
  constexpr int kMax = 100000;
  for (int n = 0; n < kMax; ++n) {
    const std::vector<Play::Action> actions = p.possible();
    if (actions.empty() && p.catch_up()) continue;
    if (actions.empty()) return p.verdict();
    int last = -1;
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i] == before) last = static_cast<int>(i);
    }
    before = actions[pick(actions, last)];
    p.act(before);
  }
  return "no end after " + std::to_string(kMax) + " actions";
}

// Takes turns, without deviations.
inline size_t in_turn(const std::vector<Play::Action>&, int last) { return last >= 0 ? static_cast<size_t>(last) : 0; }

// All runs with at most `surprises` deviations: expected is the previous actor, or else the first that can
// act. Source: the bounded number of preemptions of M. Musuvathi, S. Qadeer, "Iterative Context Bounding for
// Systematic Testing of Multithreaded Programs", PLDI 2007.
class Surprises {
 public:
  explicit Surprises(int most) : most_(most) {}

  size_t pick(const std::vector<Play::Action>& actions, int last) {
    if (at_ == path_.size()) path_.push_back({0, actions.size(), last >= 0 ? static_cast<size_t>(last) : 0});
    Point& point = path_[at_++];
    return (point.expected + point.chosen) % point.choices;
  }
  // Advances to the next run; false: that was the last.
  bool next() {
    at_ = 0;
    while (!path_.empty()) {
      int before = 0;
      for (size_t i = 0; i + 1 < path_.size(); ++i) before += path_[i].chosen != 0;
      Point& point = path_.back();
      if (before < most_ && point.chosen + 1 < point.choices) {
        ++point.chosen;
        return true;
      }
      path_.pop_back();
    }
    return false;
  }
  std::string path() const {
    std::string text;
    for (const Point& p : path_) text += std::to_string(p.chosen) + " ";
    return text;
  }

 private:
  struct Point {
    size_t chosen, choices, expected;  // chosen: distance from the expected action
  };
  const int most_;
  size_t at_ = 0;
  std::vector<Point> path_;
};

}  // namespace hvd::testing
