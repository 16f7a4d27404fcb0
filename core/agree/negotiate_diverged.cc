// What can never be decided because ranks' programs have diverged.
#include "agree/negotiate.h"

namespace hvd {
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
    const auto it = pending_.find(key);
    if (it == pending_.end() || it->second.decided) continue;
    const Request& like = it->second.by_rank.front().request;
    Ready ready;
    ready.response.kind = like.kind;
    ready.response.set = like.set;
    ready.response.face = like.face;
    ready.response.dtype = like.dtype;
    ready.response.names = {key.name};
    ready.response.shapes = {like.shape};
    ready.response.error = error;
    emit(key, std::move(ready));
    for (const GroupKey& g : over) {
      if (!groups_.count(g)) whole.insert(g);
    }
  }
  // They have had more members than their size says; what comes by these names next must not be taken for one more.
  for (const GroupKey& g : whole) groups_.erase(g);
}

}  // namespace hvd
