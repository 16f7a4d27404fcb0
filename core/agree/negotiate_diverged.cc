// What can never be decided because ranks' programs have diverged.
#include <algorithm>
#include <tuple>

#include "agree/negotiate.h"

namespace hvd {
namespace {

// "allreduce.loss" and "broadcast.loss" share the base "loss", as do members of groups; all unnamed operations share one.
std::string base_of(const Request& q) {
  if (q.unnamed) return "\n";
  for (const std::string& prefix : {std::string(name_of(q.kind)) + ".", "grouped_" + std::string(name_of(q.kind)) + "."}) {
    if (q.name.rfind(prefix, 0) == 0) return q.name.substr(prefix.size());
  }
  return q.name;
}

}  // namespace

// Groups of one name whose sizes differ between ranks, each rank of the set waiting with one size: no member may be common to two, by
// its name, so none would ever be compared.
std::vector<std::pair<Negotiator::Key, Status>> Negotiator::unlike_groups(double since) const {
  struct Spoken {
    std::map<int, std::set<uint32_t>> sizes;  // by rank
    std::vector<Key> members;
  };
  std::map<std::tuple<uint32_t, uint8_t, std::string>, Spoken> groups;
  for (const auto& [key, p] : pending_) {
    if (p.decided || p.first > since) continue;
    for (const Announced& a : p.by_rank) {
      if (a.request.group.empty()) continue;
      Spoken& spoken = groups[{key.set, key.face, a.request.group}];
      spoken.sizes[a.rank].insert(a.request.group_size);
      if (spoken.members.empty() || spoken.members.back() != key) spoken.members.push_back(key);
    }
  }
  std::vector<std::pair<Key, Status>> failed;
  for (const auto& [name, spoken] : groups) {
    const auto set = table_.sets.find(std::get<0>(name));
    if (set == table_.sets.end() || spoken.sizes.size() + joined(std::get<1>(name)).size() < set->second.size()) continue;
    const auto& [first, mine] = *spoken.sizes.begin();
    const bool one_each = std::all_of(spoken.sizes.begin(), spoken.sizes.end(), [](const auto& entry) { return entry.second.size() == 1; });
    const auto other = std::find_if(spoken.sizes.begin(), spoken.sizes.end(), [&mine](const auto& entry) { return entry.second != mine; });
    if (!one_each || other == spoken.sizes.end()) continue;
    const Status error(Code::mismatch, "ranks disagree about the size of the group '" + std::get<2>(name) +
                                           "': " + std::to_string(*mine.begin()) + " on " + labels_[first] + ", " +
                                           std::to_string(*other->second.begin()) + " on " + labels_[other->first]);
    for (const Key& key : spoken.members) failed.emplace_back(key, error);
  }
  return failed;
}

// What waits there becomes an error, unless it is decided.
void Negotiator::fail(const Key& key, const Status& why) {
  const auto it = pending_.find(key);
  if (it == pending_.end() || it->second.decided) return;
  const Request& like = it->second.by_rank.front().request;
  Ready ready;
  ready.response.kind = like.kind;
  ready.response.set = like.set;
  ready.response.face = like.face;
  ready.response.dtype = like.dtype;
  ready.response.names = {key.name};
  ready.response.shapes = {like.shape};
  ready.response.error = why;
  emit(key, std::move(ready));
}

// Unnamed members of groups about whose size ranks are known to disagree: nobody waits until it is plain that the others never announce
// them, lest the next unnamed operations of those be taken for them. Each name is used once, so a rank may hear of one twice.
void Negotiator::fail_rest() {
  if (!any_over_) return;
  std::vector<std::pair<Key, Status>> rest;
  for (const auto& [key, p] : pending_) {
    if (!p.by_rank.front().request.unnamed) continue;
    for (const GroupKey& g : groups_of(key, p)) {
      const auto group = groups_.find(g);
      if (group != groups_.end() && group->second.over) rest.emplace_back(key, group->second.error.with("group '" + g.name + "'"));
    }
  }
  for (const auto& [key, why] : rest) fail(key, why);
  any_over_ = std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) { return entry.second.over; });
}

void Negotiator::fail_diverged(double since) {
  std::vector<std::pair<Key, Status>> failed = unlike_groups(since);
  const auto old = [since](const Pending& p) { return !p.decided && p.first <= since; };
  for (auto a = pending_.begin(); a != pending_.end(); ++a) {
    if (!old(a->second)) continue;
    for (auto b = std::next(a); b != pending_.end(); ++b) {
      if (a->first.set != b->first.set || a->first.face != b->first.face || !old(b->second)) continue;
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
  // Members of a group that has failed and that not all ranks know (they disagree about its size, or about who belongs to it): nobody else
  // will announce them.
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
  // They have had more members than their size says; what comes by these names next must not be taken for one more.
  for (const GroupKey& g : whole) groups_.erase(g);
}

}  // namespace hvd
