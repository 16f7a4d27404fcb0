// Random jobs as data: the operations that ranks submit and wait for, so that all of them must end, and their
// results. A job is determined by its seed.
#pragma once
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "agree/request.h"

namespace hvd::testing {

// A rank's program, or one thread of it: the operations of the table that it submits, and those that it waits
// for.
struct Line {
  enum What { submit, wait } what;
  int op;
};
using Script = std::vector<Line>;

// An operation of a job. Ranks may request different sizes of the first dimension.
struct Planned {
  Request like;
  std::vector<int> ranks;  // of its set
  int lifetime = 0;  // of its set: ids are reused
  bool disagreed = false;  // ranks request different shapes: an error

  int64_t rows(int rank) const { return like.kind == Kind::allgather ? like.shape[0] + rank % 3 : like.shape.empty() ? 1 : like.shape[0]; }
  int64_t split(int rank, size_t to) const { return (like.shape[0] + 2 * rank + static_cast<int64_t>(to)) % 6; }
  Request request_on(int rank) const {
    Request q = like;
    if (q.kind == Kind::allgather) q.shape[0] = rows(rank);
    if (q.kind == Kind::alltoall) {
      q.shape[0] = 1;  // more rows than the splits sum to
      for (size_t to = 0; to < ranks.size(); ++to) q.shape[0] += q.splits.emplace_back(split(rank, to));
    }
    return q;
  }
};

struct JobOptions {
  int size = 2;
  int lanes = 1;  // threads of each rank, each with its own frontend
  int steps = 8;  // of each lane, approximately
};

// A step that mostly repeats, and sometimes other work: another step, a part of it, other shapes under the
// same names, ranks that disagree, or process sets that change during other operations. All ranks make the
// same operations, each in its own order where the order is free. Some ranks stop early and join.
class Job {
 public:
  Job(uint64_t seed, const JobOptions& options) : options_(options), random_(seed) {
    for (int r = 0; r < options.size; ++r) everybody_.push_back(r);
    scripts.resize(static_cast<size_t>(options.lanes), std::vector<Script>(static_cast<size_t>(options.size)));
    for (lane_ = 0; lane_ < options.lanes; ++lane_) make_lane();
  }

  std::vector<Planned> table;
  std::vector<std::vector<Script>> scripts;  // by lane, then rank

 private:
  using Ops = std::vector<int>;
  struct Set {
    uint32_t id;
    int lifetime;
    std::vector<int> ranks;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool stopped(int rank, int step) const { return step >= stops_[static_cast<size_t>(rank)]; }
  bool any_stopped(int step) const {
    return std::any_of(everybody_.begin(), everybody_.end(), [&](int r) { return stopped(r, step); });
  }
  Script& script(int rank) { return scripts[static_cast<size_t>(lane_)][static_cast<size_t>(rank)]; }
  const Planned& planned(int op) const { return table[static_cast<size_t>(op)]; }
  int plan(Request q, const Set* set = nullptr) {
    q.frontend = static_cast<uint8_t>(lane_);
    Planned p;
    if (set) q.set = set->id;
    p.ranks = set ? set->ranks : everybody_;
    p.lifetime = set ? set->lifetime : 0;
    p.like = std::move(q);
    table.push_back(std::move(p));
    return static_cast<int>(table.size()) - 1;
  }
  bool alive(const Planned& p) const {
    return p.like.set == 0 || std::any_of(sets_.begin(), sets_.end(), [&](const Set& s) { return s.lifetime == p.lifetime; });
  }

  void make_lane() {
    stops_.clear();
    sets_.clear();
    for (int r = 0; r < options_.size; ++r) stops_.push_back(below(4) ? 1000000 : below(options_.steps));
    const Ops usual = make_step(1 + below(6)), others = below(3) ? Ops{} : reshaped(usual);
    const int steps = options_.steps / 2 + below(options_.steps);
    for (int s = 0; s < steps; ++s) {
      if (lane_ == 0 && below(6) == 0) change_sets(s);  // a set's number is the same for all lanes
      switch (below(8)) {
        case 0: add(make_step(1 + below(5)), s); break;
        case 1: add(beginning_of(usual), s); break;
        case 2: disagree(usual.front(), s); break;
        default: add(!others.empty() && s % 2 ? others : usual, s);
      }
    }
    Request join;
    join.kind = Kind::join;
    const int last = plan(join);
    for (int r : everybody_) script(r).insert(script(r).end(), {{Line::submit, last}, {Line::wait, last}});
  }

  Request some() {
    constexpr Kind kKinds[] = {Kind::allreduce,     Kind::allreduce, Kind::allreduce, Kind::allreduce, Kind::allgather,
                               Kind::reducescatter, Kind::broadcast, Kind::barrier,   Kind::alltoall};
    constexpr DType kTypes[] = {DType::int32, DType::int32, DType::float32, DType::float32, DType::uint8, DType::float64, DType::float16};
    Request q;
    q.name = "t" + std::to_string(names_++);
    q.kind = kKinds[below(9)];
    q.dtype = kTypes[below(7)];
    q.shape = {options_.size + below(40)};
    if (below(8) == 0) q.shape[0] = 3000 + below(3000);
    if (below(4) == 0) q.shape.push_back(3);
    if (q.kind == Kind::barrier) q.shape = {}, q.dtype = DType::uint8;
    if (q.kind == Kind::broadcast) q.root = below(options_.size);
    if (q.kind == Kind::allreduce && below(3) == 0) q.op = below(2) ? ReduceOp::max : ReduceOp::average;
    if (q.kind == Kind::reducescatter && below(3) == 0) q.op = ReduceOp::average;
    if (q.kind == Kind::reducescatter && is_float(q.dtype) && below(3) == 0) q.prescale = 2;
    if (q.kind == Kind::allreduce && q.dtype == DType::float32 && q.op != ReduceOp::max && below(2))
      q.wire = static_cast<WireFormat>(below(4));
    return q;
  }
  // Operations, some of them in groups, in process sets, or without a name.
  Ops make_step(int n) {
    Ops ops;
    while (static_cast<int>(ops.size()) < n) {
      const Set* set = sets_.empty() || below(4) ? nullptr : &sets_[static_cast<size_t>(below(static_cast<int>(sets_.size())))];
      Request like = some();
      if (set && like.kind == Kind::broadcast) like.root = set->ranks.front();
      const int members = below(3) ? 1 : 2 + below(3);
      if (members == 1 && !set && below(4) == 0) like.name = "";
      for (int i = 0; i < members; ++i) {
        Request q = like;
        if (members > 1) {
          q.group = like.name;
          q.group_size = static_cast<uint32_t>(members);
          q.name += "." + std::to_string(i);
          if (q.kind != Kind::barrier && q.wire == WireFormat::none && below(2)) q.dtype = DType::int64;
        }
        ops.push_back(plan(q, set));
      }
    }
    return ops;
  }
  // The same names, with other lengths.
  Ops reshaped(const Ops& step) {
    Ops ops;
    for (int op : step) {
      Request q = planned(op).like;
      if (!q.shape.empty()) q.shape[0] = options_.size + below(50);
      ops.push_back(plan(q));
      table.back().ranks = planned(op).ranks;
      table.back().lifetime = planned(op).lifetime;
      table.back().like.set = planned(op).like.set;
    }
    return ops;
  }
  // Part of a step, with whole groups.
  Ops beginning_of(const Ops& step) {
    Ops some;
    for (int op : step) {
      const Request& q = planned(op).like;
      const bool same_group = !some.empty() && q.group_size && q.group == planned(some.back()).like.group;
      if (!same_group && !some.empty() && below(3) == 0) break;
      some.push_back(op);
    }
    return some;
  }

  // Each rank submits all and waits for all: in any order, or in the same order with waits in between.
  void add(const Ops& ops, int step) {
    const bool shuffled = below(2);
    for (int r : everybody_) {
      if (stopped(r, step)) continue;
      Ops own = of_rank(ops, r), waits = own;
      std::shuffle(waits.begin(), waits.end(), random_);
      if (shuffled) shuffle_named(&own);
      for (int op : own) {
        script(r).push_back({Line::submit, op});
        if (shuffled || below(4) || planned(op).like.group_size) continue;
        script(r).push_back({Line::wait, op});
        waits.erase(std::find(waits.begin(), waits.end(), op));
      }
      for (int op : waits) script(r).push_back({Line::wait, op});
    }
  }
  Ops of_rank(const Ops& ops, int rank) const {
    Ops own;
    for (int op : ops) {
      const auto& ranks = planned(op).ranks;
      if (alive(planned(op)) && std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) own.push_back(op);
    }
    return own;
  }
  // Unnamed ones keep their order.
  void shuffle_named(Ops* ops) {
    Ops unnamed;
    for (int op : *ops) {
      if (planned(op).like.name.empty()) unnamed.push_back(op);
    }
    std::shuffle(ops->begin(), ops->end(), random_);
    auto next = unnamed.begin();
    for (int& op : *ops) {
      if (planned(op).like.name.empty()) op = *next++;
    }
  }
  // The last rank requests another shape for the same name.
  void disagree(int op, int step) {
    const Request q = planned(op).like;
    if (q.name.empty() || q.group_size || q.set || q.shape.empty() || q.kind == Kind::alltoall || any_stopped(step)) return;
    Request other = q;
    other.shape.push_back(2);
    const int first = plan(q), second = plan(other);
    table[static_cast<size_t>(first)].disagreed = table[static_cast<size_t>(second)].disagreed = true;
    for (int r : everybody_) {
      const int own = r == options_.size - 1 ? second : first;
      script(r).insert(script(r).end(), {{Line::submit, own}, {Line::wait, own}});
    }
  }
  // During other operations, which are awaited afterwards.
  void change_sets(int step) {
    if (any_stopped(step)) return;
    Request q;
    q.shape = {};
    const bool remove = !sets_.empty() && below(2);
    std::vector<int> ranks;
    if (remove) {
      q.kind = Kind::remove_set;
      q.splits = {sets_.back().id};
    } else {
      for (int r : everybody_) {
        if (below(2)) ranks.push_back(r);
      }
      const bool known = std::any_of(sets_.begin(), sets_.end(), [&](const Set& s) { return s.ranks == ranks; });
      if (ranks.empty() || ranks == everybody_ || known) return;
      q.kind = Kind::add_set;
      q.splits.assign(ranks.begin(), ranks.end());
    }
    if (remove) sets_.pop_back();
    const Ops beside = make_step(1 + below(3));
    const int change = plan(q);
    for (int r : everybody_) {
      const Ops own = of_rank(beside, r);
      for (int op : own) script(r).push_back({Line::submit, op});
      script(r).insert(script(r).end(), {{Line::submit, change}, {Line::wait, change}});
      for (int op : own) script(r).push_back({Line::wait, op});
    }
    if (remove) return;
    uint32_t id = 1;
    while (std::any_of(sets_.begin(), sets_.end(), [&](const Set& s) { return s.id == id; })) ++id;
    sets_.push_back({id, ++lifetimes_, ranks});
  }

  const JobOptions options_;
  std::mt19937_64 random_;
  std::vector<int> everybody_;
  std::vector<int> stops_;  // by rank: the step before which it stops
  std::vector<Set> sets_;
  int lane_ = 0, names_ = 0, lifetimes_ = 0;
};

}  // namespace hvd::testing
