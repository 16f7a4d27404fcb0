#include "agree/negotiate.h"

#include <algorithm>

namespace hvd {

std::vector<int64_t> gather_sizes(Kind kind, const std::vector<RankRequest>& by_rank, const std::vector<int>& members) {
  std::vector<int64_t> sizes;
  for (int member : members) {
    for (const RankRequest& a : by_rank) {
      if (a.rank != member) continue;
      if (kind == Kind::allgather) sizes.push_back(a.request.shape[0]);
      if (kind == Kind::alltoall) sizes.insert(sizes.end(), a.request.splits.begin(), a.request.splits.end());
    }
  }
  return sizes;
}

namespace {

// Return the bytes of an operation that count towards the fusion threshold. For an allgather, this is the size of the
// result. Impossible sizes must not overflow this computation. Every rank rejects them later (check_response.h).
size_t bytes_to_fuse(const Request& like, const Response& r) {
  if (r.kind != Kind::allgather || !r.error.ok()) return like.bytes();
  size_t bytes = 0;
  for (int64_t rows : r.sizes) bytes += static_cast<size_t>(rows);
  for (size_t i = 1; i < like.shape.size(); ++i) bytes *= static_cast<size_t>(like.shape[i]);
  return bytes * size_of(like.dtype);
}

// True for a request to add a named process set. Only the ranks of the new set send it, so the coordinator must not wait for others.
bool by_members(const Request& q) { return q.kind == Kind::add_set && !q.unnamed; }

Status no_such_set(const Request& q) {
  return Status(Code::mismatch,
                std::string(name_of(q.kind)) + " '" + q.name + "': process set " + std::to_string(q.set) + " no longer exists");
}

}  // namespace

Negotiator::Negotiator(int world, std::vector<std::string> labels) : world_(world), labels_(std::move(labels)) {
  std::vector<int> all(world);
  for (int r = 0; r < world; ++r) all[r] = r;
  table_.sets[0] = std::move(all);
}

void Negotiator::add_request(int rank, Request request, double now) {
  now_ = now;
  if (request.kind == Kind::join) {
    join(rank, request.frontend, now);
    return;
  }
  const Key key{request.set, request.frontend, request.name};
  if (answer_late(key, rank, request)) return;
  auto [it, fresh] = pending_.try_emplace(key);
  Pending& p = it->second;
  if (fresh) p.first = now;
  if (p.decided) {
    spoil(key, Status(Code::internal,
                      std::string(name_of(request.kind)) + " '" + request.name + "': " + labels_[rank] + " has requested it twice"));
    return;
  }
  p.by_rank.push_back({rank, std::move(request)});
  settle(key);
  fail_rest();
}

bool Negotiator::complete(const Key& key, const Pending& p) const {
  const auto set = table_.sets.find(key.set);
  // Report a missing process set immediately, instead of waiting for more ranks.
  if (set == table_.sets.end()) return true;
  size_t have = p.by_rank.size();
  if (const Request& like = p.by_rank.front().request; by_members(like)) return have >= like.splits.size();
  if (have >= set->second.size()) return true;
  // Do not wait for ranks that have called join().
  for (int rank : joined(key.frontend)) {
    const bool member = std::binary_search(set->second.begin(), set->second.end(), rank);
    const bool requested = std::any_of(p.by_rank.begin(), p.by_rank.end(), [&](const RankRequest& a) { return a.rank == rank; });
    if (member && !requested) ++have;
  }
  return have >= set->second.size();
}

void Negotiator::settle(const Key& key) {
  auto it = pending_.find(key);
  if (it == pending_.end() || it->second.decided || !complete(key, it->second)) return;
  Pending& p = it->second;
  std::sort(p.by_rank.begin(), p.by_rank.end(), [](const RankRequest& a, const RankRequest& b) { return a.rank < b.rank; });
  const Request& like = p.by_rank.front().request;
  Ready ready;
  // A fence is a counter that increases each time the program of a rank waits. Use the fence of the set's first rank,
  // because the counters of different ranks are not comparable.
  ready.fence = like.fence;
  ready.unnamed = like.unnamed;
  ready.response = decide(key, p);
  ready.bytes = bytes_to_fuse(like, ready.response);
  emit(key, std::move(ready));
  settle_removed();
}

// Fail the pending operations of removed process sets, because these operations can never complete.
void Negotiator::settle_removed() {
  while (!removed_.empty()) {
    const uint32_t id = removed_.back();
    removed_.pop_back();
    std::erase_if(answered_, [id](const auto& entry) { return entry.first.set == id; });
    std::vector<Key> keys;
    for (const auto& [key, p] : pending_) {
      if (key.set == id) keys.push_back(key);
    }
    for (const Key& key : keys) {
      const auto it = pending_.find(key);
      if (it != pending_.end() && it->second.decided) spoil(key, no_such_set(it->second.by_rank.front().request));
      settle(key);
    }
  }
}

// Repeat the checks that each rank makes before it sends a request. This protects the decisions from a faulty rank.
Status Negotiator::check_requests(const std::vector<RankRequest>& by_rank, const std::vector<int>& members) const {
  for (size_t i = 0; i < by_rank.size(); ++i) {
    const RankRequest& a = by_rank[i];
    const bool twice = i > 0 && by_rank[i - 1].rank == a.rank;
    if (twice || !std::binary_search(members.begin(), members.end(), a.rank)) {
      return Status(Code::internal, std::string(name_of(a.request.kind)) + " '" + a.request.name + "': " + labels_[a.rank] +
                                        (twice ? " has requested it twice" : " is not in the process set"));
    }
    if (Status s = check_arguments(a.request, members); !s.ok()) return s.with(labels_[a.rank]);
    if (by_members(a.request) && !std::binary_search(a.request.splits.begin(), a.request.splits.end(), a.rank)) {
      return Status(Code::mismatch, std::string(name_of(a.request.kind)) + " '" + a.request.name + "': " + labels_[a.rank] +
                                        " is not one of its ranks " + shape_string(a.request.splits));
    }
  }
  return {};
}

Response Negotiator::decide(const Key& key, Pending& p) {
  const Request& like = p.by_rank.front().request;
  Response r;
  r.kind = like.kind;
  r.set = key.set;
  r.frontend = key.frontend;
  r.dtype = like.dtype;
  r.op = like.op;
  r.wire = like.wire;
  r.device = like.device;
  r.across_hosts = like.across_hosts;
  r.root = like.root;
  r.prescale = like.prescale;
  r.postscale = like.postscale;
  r.names = {key.name};
  r.shapes = {like.shape};
  r.error = validate(p.by_rank, labels_);
  if (!r.error.ok()) return r;
  const auto set = table_.sets.find(key.set);
  if (set == table_.sets.end()) {
    r.error = no_such_set(like);
    return r;
  }
  r.error = check_requests(p.by_rank, set->second);
  if (!r.error.ok()) return r;
  const bool short_of_ranks = !by_members(like) && p.by_rank.size() < set->second.size();
  if (short_of_ranks && (r.kind != Kind::allreduce || r.set != 0)) {
    r.error =
        Status(Code::mismatch, std::string(name_of(r.kind)) + " '" + key.name + "' is not possible after " +
                                   labels_[joined(key.frontend).front()] + " has called join; only allreduce on the global process set is");
    return r;
  }
  r.partial = short_of_ranks;
  switch (r.kind) {
    case Kind::allgather:
    case Kind::alltoall: r.sizes = gather_sizes(r.kind, p.by_rank, set->second); break;
    case Kind::add_set: r.error = table_.add(like.splits, world_, &r.sizes); break;
    case Kind::remove_set: {
      const auto id = static_cast<uint32_t>(like.splits.at(0));
      r.sizes = {table_.remove(id) ? 1 : 0, id};
      removed_.push_back(id);
      break;
    }
    default: break;
  }
  return r;
}

// Return the groups to which the ranks' requests assign an operation. There are several only if the ranks disagree.
std::set<Negotiator::GroupKey> Negotiator::groups_of(const Key& key, const Pending& p) {
  std::set<GroupKey> groups;
  for (const RankRequest& a : p.by_rank) {
    const Request& q = a.request;
    if (!q.group.empty() && q.group_size > 1) groups.insert({key.set, key.frontend, q.group_size, q.group});
  }
  return groups;
}

void Negotiator::push(Ready ready, uint64_t unit) {
  ready.unit = unit;
  last_decision_ = now_;
  ready_.push_back(std::move(ready));
}

// Emit an operation that all ranks have requested. If it belongs to a group, hold it until the rest of the group is
// complete. If one operation of a group fails, fail the whole group before any of it runs, so that the program can
// retry the group.
void Negotiator::emit(const Key& key, Ready ready) {
  const auto it = pending_.find(key);
  const std::set<GroupKey> groups = groups_of(key, it->second);
  for (const GroupKey& g : groups) {
    Group& group = groups_[g];
    ++group.decided;
    if (!group.error.ok() && ready.response.error.ok()) ready.response.error = group.error.with("group '" + g.name + "'");
    if (group.error.ok()) group.error = ready.response.error;
  }
  const Pending& p = it->second;
  const bool unlike = std::any_of(p.by_rank.begin(), p.by_rank.end(),
                                  [&p](const RankRequest& a) { return a.request.group_size != p.by_rank.front().request.group_size; });
  for (const GroupKey& g : groups) groups_[g].over |= unlike;
  any_over_ |= unlike;
  const bool held = !groups.empty() && ready.response.error.ok();
  if (held) {
    ready.group_size = groups.begin()->size;
    it->second.decided = std::move(ready);
    groups_[*groups.begin()].held.push_back(key);
  }
  for (const GroupKey& g : groups) {
    Group& group = groups_[g];
    if (group.decided >= g.size || !group.error.ok()) release(g, &group);
    if (group.decided >= g.size) groups_.erase(g);
  }
  if (held) return;
  pending_.erase(key);
  push(std::move(ready), groups.empty() ? ++units_ : units_);
}

// Emit all operations of a complete group, or their errors if the group has failed.
void Negotiator::release(const GroupKey& key, Group* group) {
  std::vector<Ready> members;
  uint64_t fence = 0;
  for (const Key& member : group->held) {
    const auto it = pending_.find(member);
    fence = std::max(fence, it->second.decided->fence);
    members.push_back(std::move(*it->second.decided));
    pending_.erase(it);
  }
  group->held.clear();
  ++units_;
  for (Ready& member : members) {
    if (!group->error.ok()) member.response.error = group->error.with("group '" + key.name + "'");
    // Give all operations of the group the same fence, because only operations with equal fences are fused. The fences
    // differ if another thread waited for an unrelated operation while the group was being submitted.
    member.fence = fence;
    push(std::move(member), units_);
  }
}

// Fail every group that contains `key`, including the operations held until the group is complete.
void Negotiator::spoil(const Key& key, const Status& why) {
  for (const GroupKey& g : groups_of(key, pending_.at(key))) {
    Group& group = groups_[g];
    if (group.error.ok()) group.error = why;
    release(g, &group);
  }
}

const std::vector<int>& Negotiator::joined(uint8_t frontend) const {
  static const std::vector<int> none;
  const auto it = joined_.find(frontend);
  return it == joined_.end() ? none : it->second.ranks;
}

void Negotiator::join(int rank, uint8_t frontend, double now) {
  std::vector<int>& ranks = joined_[frontend].ranks;
  joined_[frontend].last = now;
  if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  settle_all_of_world();
  if (static_cast<int>(ranks.size()) < world_) return;
  Ready ready;
  ready.response.kind = Kind::join;
  ready.response.frontend = frontend;
  ready.response.names = {kJoinName};
  ready.response.shapes = {{}};
  ready.response.sizes = {rank};
  joined_.erase(frontend);
  // Delete the stored errors of unnamed operations. They are numbered from 0 again after a join, so new operations would get old errors.
  std::erase_if(answered_, [frontend](const auto& entry) { return entry.first.set == 0 && entry.first.frontend == frontend; });
  push(std::move(ready), ++units_);
}

void Negotiator::settle_all_of_world() {
  std::vector<Key> keys;
  for (const auto& [key, p] : pending_) keys.push_back(key);
  for (const Key& key : keys) settle(key);
  fail_rest();
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

bool Negotiator::may_be_scheduled(const std::vector<Ready>& period) const {
  // Propose no schedule while the error of a failed group is still needed for its late operations, because a schedule would delete it.
  for (const auto& [key, group] : groups_) {
    if (!group.error.ok()) return false;
  }
  std::set<Key> names;
  std::set<uint64_t> streams;
  for (const Ready& r : period) {
    const Response& one = r.response;
    if (r.unnamed) streams.insert(stream_of(one.set, one.frontend, one.kind));
    names.insert({one.set, one.frontend, one.names.front()});
  }
  for (const auto& [key, p] : pending_) {
    const Request& q = p.by_rank.front().request;
    if (q.unnamed ? !streams.count(stream_of(q.set, q.frontend, q.kind)) : !names.count(key)) return false;
  }
  return true;
}

std::vector<std::string> Negotiator::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, p] : pending_) all.push_back(key_of(key.set, key.frontend, key.name));
  for (const auto& [frontend, j] : joined_) all.push_back(key_of(0, frontend, kJoinName));
  return all;
}

std::vector<Negotiator::Waiting> Negotiator::waiting(double since) const {
  std::vector<Waiting> out;
  auto add = [&](const Key& key, const std::string& name, double first, std::vector<int> ready, const Request* like) {
    const auto set = table_.sets.find(key.set);
    if (set == table_.sets.end()) return;
    Waiting w{name, key.set, first, std::move(ready), {}};
    std::sort(w.ready.begin(), w.ready.end());
    // Ranks that have called join(). The coordinator does not wait for them.
    const std::vector<int>& left = joined(key.frontend);
    for (int r : set->second) {
      if (like && by_members(*like) && !std::binary_search(like->splits.begin(), like->splits.end(), r)) continue;
      if (std::binary_search(w.ready.begin(), w.ready.end(), r) || std::find(left.begin(), left.end(), r) != left.end()) continue;
      w.missing.push_back(r);
    }
    out.push_back(std::move(w));
  };
  // Groups with a pending operation, which are therefore already reported by the name of that operation.
  std::set<GroupKey> reported;
  for (const auto& [key, p] : pending_) {
    if (p.decided) continue;
    for (const GroupKey& g : groups_of(key, p)) reported.insert(g);
    if (p.first > since) continue;
    std::vector<int> ready;
    for (const RankRequest& a : p.by_rank) ready.push_back(a.rank);
    add(key, key.name, p.first, std::move(ready), &p.by_rank.front().request);
  }
  for (const auto& [g, group] : groups_) {
    if (group.held.empty() || reported.count(g)) continue;
    const Key& key = group.held.front();
    const double first = pending_.at(key).first;
    if (first > since) continue;
    const std::string part = " (only " + std::to_string(group.held.size()) + " of its " + std::to_string(g.size) + " members)";
    add(key, "group '" + g.name + "'" + part, first, {}, nullptr);
  }
  for (const auto& [frontend, j] : joined_) {
    const double first = std::max(j.last, last_decision_);
    if (first <= since) add({0, frontend, ""}, "join", first, j.ranks, nullptr);
  }
  return out;
}

}  // namespace hvd
