#include "engine/negotiate.h"

#include <algorithm>
#include <set>

#include "transport/segment.h"

namespace hvd {

uint32_t ProcessSetTable::lowest_free_id() const {
  uint32_t id = 1;
  while (sets.count(id)) ++id;
  return id;
}

int64_t ProcessSetTable::find(const std::vector<int>& ranks) const {
  for (const auto& [id, members] : sets) {
    if (members == ranks) return id;
  }
  return -1;
}

std::vector<int64_t> gather_sizes(Kind kind, const std::vector<Announced>& by_rank, const std::vector<int>& members) {
  std::vector<int64_t> sizes;
  for (int member : members) {
    for (const Announced& a : by_rank) {
      if (a.rank != member) continue;
      if (kind == Kind::allgather) sizes.push_back(a.request.shape[0]);
      if (kind == Kind::alltoall) sizes.insert(sizes.end(), a.request.splits.begin(), a.request.splits.end());
    }
  }
  return sizes;
}

Negotiator::Negotiator(int world, std::vector<std::string> labels) : world_(world), labels_(std::move(labels)) {
  std::vector<int> all(world);
  for (int r = 0; r < world; ++r) all[r] = r;
  table_.sets[0] = std::move(all);
}

void Negotiator::announce(int rank, Request request, double now) {
  if (request.kind == Kind::join) {
    join(rank, request.face);
    return;
  }
  const Key key{request.set, request.face, request.name};
  auto [it, fresh] = pending_.try_emplace(key);
  Pending& p = it->second;
  if (fresh) p.first = now;
  p.by_rank.push_back({rank, std::move(request)});
  settle(key);
}

bool Negotiator::complete(const Key& key, const Pending& p) const {
  const auto set = table_.sets.find(key.set);
  if (set == table_.sets.end()) return true;  // decided as an error
  size_t have = p.by_rank.size();
  if (have >= set->second.size()) return true;
  // A rank that has joined is not waited for.
  for (int rank : joined(key.face)) {
    const bool member = std::binary_search(set->second.begin(), set->second.end(), rank);
    const bool announced = std::any_of(p.by_rank.begin(), p.by_rank.end(), [&](const Announced& a) { return a.rank == rank; });
    if (member && !announced) ++have;
  }
  return have >= set->second.size();
}

void Negotiator::settle(const Key& key) {
  auto it = pending_.find(key);
  if (it == pending_.end() || !complete(key, it->second)) return;
  Pending p = std::move(it->second);
  pending_.erase(it);
  std::sort(p.by_rank.begin(), p.by_rank.end(), [](const Announced& a, const Announced& b) { return a.rank < b.rank; });
  const Request like = p.by_rank.front().request;
  Ready ready;
  ready.fence = like.fence;  // of the set's first rank; comparable within one set
  ready.bytes = like.bytes();
  ready.unnamed = like.unnamed;
  ready.response = decide(key, p);
  emit(std::move(ready), like);
  settle_removed();
}

// Operations that still wait in a set that is gone will never be complete: they become errors.
void Negotiator::settle_removed() {
  while (!removed_.empty()) {
    const uint32_t id = removed_.back();
    removed_.pop_back();
    std::vector<Key> keys;
    for (const auto& [key, p] : pending_) {
      if (key.set == id) keys.push_back(key);
    }
    for (const Key& key : keys) settle(key);
  }
}

// What each rank has checked before it announced it; a rank that goes wrong must not make this one decide nonsense.
Status Negotiator::check_announced(const std::vector<Announced>& by_rank, const std::vector<int>& members) const {
  for (size_t i = 0; i < by_rank.size(); ++i) {
    const Announced& a = by_rank[i];
    const bool twice = i > 0 && by_rank[i - 1].rank == a.rank;
    if (twice || !std::binary_search(members.begin(), members.end(), a.rank)) {
      return Status(Code::internal, std::string(name_of(a.request.kind)) + " '" + a.request.name + "': " + labels_[a.rank] +
                                        (twice ? " has announced it twice" : " is not in the process set"));
    }
    if (Status s = check_arguments(a.request, members); !s.ok()) return s.with(labels_[a.rank]);
  }
  return {};
}

Response Negotiator::decide(const Key& key, Pending& p) {
  const Request& like = p.by_rank.front().request;
  Response r;
  r.kind = like.kind;
  r.set = key.set;
  r.face = key.face;
  r.dtype = like.dtype;
  r.op = like.op;
  r.wire = like.wire;
  r.root = like.root;
  r.prescale = like.prescale;
  r.postscale = like.postscale;
  r.names = {key.name};
  r.shapes = {like.shape};
  r.error = validate(p.by_rank, labels_);
  if (!r.error.ok()) return r;
  const auto set = table_.sets.find(key.set);
  if (set == table_.sets.end()) {
    r.error = Status(Code::mismatch, std::string(name_of(r.kind)) + " '" + key.name + "': process set " + std::to_string(key.set) +
                                         " does not exist any more");
    return r;
  }
  r.error = check_announced(p.by_rank, set->second);
  if (!r.error.ok()) return r;
  const bool short_of_ranks = p.by_rank.size() < set->second.size();
  if (short_of_ranks && (r.kind != Kind::allreduce || r.set != 0)) {
    r.error = Status(Code::mismatch, std::string(name_of(r.kind)) + " '" + key.name + "' is not possible while " + labels_[joined(key.face).front()] +
                                         " has called join; only allreduce on the global process set is");
    return r;
  }
  switch (r.kind) {
    case Kind::allgather:
    case Kind::alltoall:
      r.sizes = gather_sizes(r.kind, p.by_rank, set->second);
      break;
    case Kind::add_set: {
      const std::vector<int> ranks(like.splits.begin(), like.splits.end());
      if (const int64_t known = table_.find(ranks); known >= 0) {
        r.error = Status(Code::invalid_argument, "process set " + shape_string(like.splits) + " exists already with id " + std::to_string(known));
        break;
      }
      const uint32_t id = table_.lowest_free_id();
      if (id >= kMaxProcessSets) {
        r.error = Status(Code::invalid_argument, "no more than " + std::to_string(kMaxProcessSets) + " process sets can exist at a time");
        break;
      }
      if (ranks.empty() || ranks.front() < 0 || ranks.back() >= world_ || !std::is_sorted(ranks.begin(), ranks.end())) {
        r.error = Status(Code::invalid_argument, "process set " + shape_string(like.splits) + ": ranks between 0 and " +
                                                     std::to_string(world_ - 1) + " in rising order are accepted");
        break;
      }
      table_.sets[id] = ranks;
      r.sizes = {id, static_cast<int64_t>(++generation_)};
      r.sizes.insert(r.sizes.end(), like.splits.begin(), like.splits.end());
      break;
    }
    case Kind::remove_set: {
      const auto id = static_cast<uint32_t>(like.splits.at(0));
      const bool removed = id != 0 && table_.sets.erase(id) > 0;
      r.sizes = {removed ? 1 : 0, id};
      removed_.push_back(id);
      break;
    }
    default:
      break;
  }
  return r;
}

void Negotiator::emit(Ready ready, const Request& like) {
  if (like.group.empty() || like.group_size <= 1) {
    ready.unit = ++units_;
    ready_.push_back(std::move(ready));
    return;
  }
  const Key key{like.set, like.face, like.group};
  Group& group = groups_[key];
  group.size = like.group_size;
  if (!ready.response.error.ok() && group.error.ok()) group.error = ready.response.error;
  group.ready.push_back(std::move(ready));
  if (++group.decided < group.size && group.error.ok()) return;
  release(&group, like.group);
  if (group.decided >= group.size) groups_.erase(key);
}

// Lets go of what a group holds. One wrong member spoils the group: nothing of it runs, so all of it can be tried again.
void Negotiator::release(Group* group, const std::string& name) {
  const uint64_t unit = ++units_;
  for (Ready& member : group->ready) {
    if (!group->error.ok() && member.response.error.ok()) member.response.error = group->error.with("group '" + name + "'");
    member.unit = unit;
    member.grouped = true;
    ready_.push_back(std::move(member));
  }
  group->ready.clear();
}

const std::vector<int>& Negotiator::joined(uint8_t face) const {
  static const std::vector<int> nobody;
  const auto it = joined_.find(face);
  return it == joined_.end() ? nobody : it->second;
}

void Negotiator::join(int rank, uint8_t face) {
  std::vector<int>& ranks = joined_[face];
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  settle_all_of_world();
  if (static_cast<int>(ranks.size()) < world_) return;
  Ready ready;
  ready.unit = ++units_;
  ready.response.kind = Kind::join;
  ready.response.face = face;
  ready.response.names = {"join.noname"};
  ready.response.shapes = {{}};
  ready.response.sizes = {rank};
  joined_.erase(face);
  ready_.push_back(std::move(ready));
}

void Negotiator::settle_all_of_world() {
  std::vector<Key> keys;
  for (const auto& [key, p] : pending_) keys.push_back(key);
  for (const Key& key : keys) settle(key);
}

std::vector<Ready> Negotiator::take_ready() {
  std::vector<Ready> out;
  out.swap(ready_);
  return out;
}

void Negotiator::clear_pending() {
  pending_.clear();
  groups_.clear();
}

std::vector<Negotiator::Waiting> Negotiator::waiting(double since) const {
  std::vector<Waiting> out;
  for (const auto& [key, p] : pending_) {
    if (p.first > since) continue;
    Waiting w{key.name, key.set, p.first, {}, {}};
    for (const Announced& a : p.by_rank) w.ready.push_back(a.rank);
    std::sort(w.ready.begin(), w.ready.end());
    const auto set = table_.sets.find(key.set);
    if (set == table_.sets.end()) continue;
    for (int r : set->second) {
      if (!std::binary_search(w.ready.begin(), w.ready.end(), r)) w.missing.push_back(r);
    }
    out.push_back(std::move(w));
  }
  return out;
}

namespace {

// "allreduce.loss" and "broadcast.loss" share the base "loss"; all unnamed operations share one.
std::string base_of(const Request& q) {
  if (q.unnamed) return "\n";
  const std::string prefix = std::string(name_of(q.kind)) + ".";
  return q.name.rfind(prefix, 0) == 0 ? q.name.substr(prefix.size()) : q.name;
}

}  // namespace

void Negotiator::fail_diverged(double since) {
  std::vector<std::pair<Key, Status>> failed;
  for (auto a = pending_.begin(); a != pending_.end(); ++a) {
    if (a->second.first > since) continue;
    for (auto b = std::next(a); b != pending_.end(); ++b) {
      if (a->first.set != b->first.set || a->first.face != b->first.face || b->second.first > since) continue;
      const Announced &x = a->second.by_rank.front(), &y = b->second.by_rank.front();
      if (x.request.kind == y.request.kind || base_of(x.request) != base_of(y.request)) continue;
      std::set<int> ranks;
      for (const auto* p : {&a->second, &b->second}) {
        for (const Announced& one : p->by_rank) ranks.insert(one.rank);
      }
      if (!table_.sets.count(a->first.set)) continue;
      const bool disjoint = ranks.size() == a->second.by_rank.size() + b->second.by_rank.size();
      if (!disjoint || ranks.size() < table_.sets.at(a->first.set).size()) continue;
      Status error(Code::mismatch, std::string("ranks disagree about the operation: ") + name_of(x.request.kind) + " '" + x.request.name +
                                       "' on " + labels_[x.rank] + ", " + name_of(y.request.kind) + " '" + y.request.name + "' on " +
                                       labels_[y.rank]);
      failed.emplace_back(a->first, error);
      failed.emplace_back(b->first, error);
    }
  }
  // Members of a group that has failed and that not all ranks know (they disagree about its size): nobody else will announce them.
  for (auto it = groups_.begin(); it != groups_.end();) {
    if (it->second.error.ok()) {
      ++it;
      continue;
    }
    bool old = false;
    for (const auto& [key, p] : pending_) {
      if (p.first > since || key.set != it->first.set || key.face != it->first.face || p.by_rank.front().request.group != it->first.name) continue;
      failed.emplace_back(key, it->second.error.with("group '" + it->first.name + "'"));
      old = true;
    }
    it = old ? groups_.erase(it) : std::next(it);
  }
  for (auto& [key, error] : failed) {
    auto it = pending_.find(key);
    if (it == pending_.end()) continue;
    const Request like = it->second.by_rank.front().request;
    pending_.erase(it);
    Ready ready;
    ready.response.kind = like.kind;
    ready.response.set = like.set;
    ready.response.face = like.face;
    ready.response.dtype = like.dtype;
    ready.response.names = {key.name};
    ready.response.shapes = {like.shape};
    ready.response.error = error;
    ready.unit = ++units_;
    ready_.push_back(std::move(ready));
  }
}

}  // namespace hvd
