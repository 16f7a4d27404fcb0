#include <algorithm>
#include <tuple>

#include "agree/negotiate.h"

namespace hvd {
namespace {

// Return the base name of an operation. "allreduce.loss" and "broadcast.loss" share the base "loss", as do the members
// of a group named "loss". All unnamed operations share one base.
std::string base_of(const Request& q) {
  if (q.unnamed) return "\n";
  for (const std::string& prefix : {std::string(name_of(q.kind)) + ".", "grouped_" + std::string(name_of(q.kind)) + "."}) {
    if (q.name.rfind(prefix, 0) == 0) return q.name.substr(prefix.size());
  }
  return q.name;
}

}  // namespace

// Find groups with equal names and different sizes for which all ranks of the set are waiting. Their operations can have entirely different
// names, so comparing operations would not find these groups.
std::vector<std::pair<Negotiator::Key, Status>> Negotiator::unlike_groups(double since) const {
  struct Spoken {
    // Sizes of the group according to each rank's requests.
    std::map<int, std::set<uint32_t>> sizes;
    std::vector<Key> members;
  };
  std::map<std::tuple<uint32_t, uint8_t, std::string>, Spoken> groups;
  for (const auto& [key, p] : pending_) {
    if (p.decided || p.first > since) continue;
    for (const RankRequest& a : p.by_rank) {
      if (a.request.group.empty()) continue;
      Spoken& spoken = groups[{key.set, key.frontend, a.request.group}];
      spoken.sizes[a.rank].insert(a.request.group_size);
      if (spoken.members.empty() || spoken.members.back() != key) spoken.members.push_back(key);
    }
  }
  std::vector<std::pair<Key, Status>> failed;
  for (const auto& [name, spoken] : groups) {
    const auto set = table_.sets.find(std::get<0>(name));
    if (set == table_.sets.end()) continue;
    const std::vector<int>& gone = joined(std::get<1>(name));
    const bool all_spoken = std::all_of(set->second.begin(), set->second.end(), [&sizes = spoken.sizes, &gone](int rank) {
      return sizes.count(rank) != 0 || std::find(gone.begin(), gone.end(), rank) != gone.end();
    });
    if (!all_spoken) continue;
    const auto& [first, own] = *spoken.sizes.begin();
    const bool one_each = std::all_of(spoken.sizes.begin(), spoken.sizes.end(), [](const auto& entry) { return entry.second.size() == 1; });
    const auto other = std::find_if(spoken.sizes.begin(), spoken.sizes.end(), [&own](const auto& entry) { return entry.second != own; });
    if (!one_each || other == spoken.sizes.end()) continue;
    const Status error(Code::mismatch, "ranks disagree about the size of the group '" + std::get<2>(name) +
                                           "': " + std::to_string(*own.begin()) + " on " + labels_[first] + ", " +
                                           std::to_string(*other->second.begin()) + " on " + labels_[other->first]);
    for (const Key& key : spoken.members) failed.emplace_back(key, error);
  }
  return failed;
}

namespace {

Ready failure_of(const Request& like, const Status& why) {
  Ready ready;
  ready.response.kind = like.kind;
  ready.response.set = like.set;
  ready.response.frontend = like.frontend;
  ready.response.dtype = like.dtype;
  ready.response.names = {like.name};
  ready.response.shapes = {like.shape};
  ready.response.error = why;
  return ready;
}

}  // namespace

// Fail a pending operation, unless the coordinator has already determined its response.
void Negotiator::fail(const Key& key, const Status& why) {
  const auto it = pending_.find(key);
  if (it == pending_.end() || it->second.decided) return;
  emit(key, failure_of(it->second.by_rank.front().request, why));
}

// Fail the unnamed operations of groups whose sizes differ between ranks. If they stayed pending, later unnamed operations of other ranks
// would be matched with them. A rank that requests a failed operation later gets the same error.
void Negotiator::fail_rest() {
  if (!any_over_) return;
  // Maximum number of failed operations whose errors are kept for late requests. A rank that already has the error might never send its
  // request, so some entries would otherwise stay forever.
  constexpr size_t kAnswered = 1024;
  std::vector<std::pair<Key, Status>> rest;
  for (const auto& [key, p] : pending_) {
    if (p.decided || !p.by_rank.front().request.unnamed) continue;
    for (const GroupKey& g : groups_of(key, p)) {
      const auto group = groups_.find(g);
      if (group == groups_.end() || !group->second.over) continue;
      rest.emplace_back(key, group->second.error.with("group '" + g.name + "'"));
      break;
    }
  }
  for (const auto& [key, why] : rest) {
    const Pending& p = pending_.at(key);
    Answered answered{why, {}, groups_of(key, p)};
    for (const RankRequest& a : p.by_rank) answered.ranks.insert(a.rank);
    fail(key, why);
    answered_.insert_or_assign(key, std::move(answered));
    if (answered_.size() > kAnswered) answered_.erase(answered_.begin());
  }
  any_over_ = std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) { return entry.second.over; });
}

// Send the error of a failed operation to a rank that requests it late, once per rank: a second request from this rank with the same name
// is a new operation.
bool Negotiator::answer_late(const Key& key, int rank, const Request& request) {
  const auto it = answered_.find(key);
  if (it == answered_.end() || !request.unnamed || !it->second.ranks.insert(rank).second) return false;
  Answered& answered = it->second;
  for (const GroupKey& g : groups_of(key, {{{rank, request}}, 0, {}})) {
    const auto group = groups_.find(g);
    if (!answered.groups.insert(g).second || group == groups_.end()) continue;
    if (++group->second.decided >= g.size) groups_.erase(group);
  }
  push(failure_of(request, answered.why), ++units_);
  const auto set = table_.sets.find(key.set);
  if (set == table_.sets.end() || answered.ranks.size() >= set->second.size()) answered_.erase(it);
  return true;
}

void Negotiator::fail_diverged(double since) {
  std::vector<std::pair<Key, Status>> failed = unlike_groups(since);
  const auto old = [since](const Pending& p) { return !p.decided && p.first <= since; };
  for (auto a = pending_.begin(); a != pending_.end(); ++a) {
    if (!old(a->second)) continue;
    for (auto b = std::next(a); b != pending_.end(); ++b) {
      if (a->first.set != b->first.set || a->first.frontend != b->first.frontend || !old(b->second)) continue;
      const RankRequest &x = a->second.by_rank.front(), &y = b->second.by_rank.front();
      if (x.request.kind == y.request.kind || base_of(x.request) != base_of(y.request)) continue;
      std::set<int> ranks;
      for (const auto* p : {&a->second, &b->second}) {
        for (const RankRequest& one : p->by_rank) ranks.insert(one.rank);
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
  // Groups that have failed because ranks disagree about them. Their remaining operations fail too, because no other rank will request
  // them.
  std::set<GroupKey> over;
  const auto has_failed = [this](const GroupKey& g) {
    const auto group = groups_.find(g);
    return group != groups_.end() && !group->second.error.ok();
  };
  for (const auto& [key, p] : pending_) {
    for (const GroupKey& g : groups_of(key, p)) {
      if (old(p) && has_failed(g)) over.insert(g);
    }
  }
  for (const auto& [key, p] : pending_) {
    for (const GroupKey& g : groups_of(key, p)) {
      if (over.count(g)) failed.emplace_back(key, groups_.at(g).error.with("group '" + g.name + "'"));
    }
  }
  std::set<GroupKey> whole;
  for (auto& [key, error] : failed) {
    fail(key, error);
    for (const GroupKey& g : over) {
      if (!groups_.count(g)) whole.insert(g);
    }
  }
  // If a failed group has received more operations than its size, the surplus has created a new entry. Delete it, so that a later group
  // with this name starts without an error.
  for (const GroupKey& g : whole) groups_.erase(g);
}

}  // namespace hvd
