#include "engine/group_assembly.h"

namespace hvd {

GroupAssembly::Groups::iterator GroupAssembly::find(const Request& q) {
  if (last_ != groups_.end()) {
    const Key& k = last_->first;
    if (k.set == q.set && k.frontend == q.frontend && k.kind == q.kind && k.size == q.group_size && k.name == q.group) return last_;
  }
  return last_ = groups_.find(key_of(q));
}

GroupAssembly::Groups::iterator GroupAssembly::find_or_add(const Request& q) {
  if (find(q) == groups_.end()) last_ = groups_.try_emplace(key_of(q)).first;
  return last_;
}

void GroupAssembly::erase(Groups::iterator group) {
  if (group == last_) last_ = groups_.end();
  groups_.erase(group);
}

// True if the caller gave up the group and now starts it again: `q` has a name that the group already had.
bool GroupAssembly::begins_anew(const Group& group, const Request& q) {
  return (!group.refused.ok() || group.given_out) && !q.unnamed && group.names.count(q.name) != 0;
}

void GroupAssembly::note_members(Group* group) {
  for (const OperationPtr& member : group->members) {
    if (!member->request.unnamed) group->names.insert(member->request.name);
  }
}

Status GroupAssembly::refusal(const Request& q) {
  const auto it = find(q);
  if (it == groups_.end()) return {};
  if (!begins_anew(it->second, q)) return it->second.refused;
  erase(it);
  return {};
}

std::vector<OperationPtr> GroupAssembly::add(const OperationPtr& op) {
  const auto it = find_or_add(op->request);
  Group& group = it->second;
  group.members.push_back(op);
  const bool last = ++group.count >= op->request.group_size;
  std::vector<OperationPtr> whole;
  if (group.given_out) note_members(&group);
  if (last || group.given_out) whole.swap(group.members);
  if (last) erase(it);
  return whole;
}

std::vector<OperationPtr> GroupAssembly::refuse(const Request& q, const Status& why) {
  const auto it = find_or_add(q);
  Group& group = it->second;
  if (begins_anew(group, q)) group = {};
  if (group.refused.ok()) group.refused = why.with("group '" + q.group + "'");
  note_members(&group);
  if (!q.unnamed) group.names.insert(q.name);
  std::vector<OperationPtr> members;
  members.swap(group.members);
  if (++group.count >= q.group_size) erase(it);
  return members;
}

std::vector<OperationPtr> GroupAssembly::take_with(const Operation& op) {
  std::vector<OperationPtr> members;
  const auto it = find(op.request);
  if (it == groups_.end()) return members;
  Group& group = it->second;
  bool here = false;
  for (const OperationPtr& member : group.members) here = here || member.get() == &op;
  if (!here) return members;
  note_members(&group);
  members.swap(group.members);
  group.given_out = true;
  return members;
}

std::vector<OperationPtr> GroupAssembly::take_all() {
  std::vector<OperationPtr> all;
  for (auto& [key, group] : groups_) all.insert(all.end(), group.members.begin(), group.members.end());
  groups_.clear();
  last_ = groups_.end();
  return all;
}

const Operation* GroupAssembly::oldest_unattended() const {
  const Operation* oldest = nullptr;
  for (const auto& [key, group] : groups_) {
    if (group.members.empty() || !group.members.front()->on_done) continue;
    if (!oldest || group.members.front()->submitted < oldest->submitted) oldest = group.members.front().get();
  }
  return oldest;
}

}  // namespace hvd
