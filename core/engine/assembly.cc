#include "engine/assembly.h"

namespace hvd {

Status Assembly::refusal(const Request& q) {
  const auto it = groups_.find(key_of(q));
  if (it == groups_.end() || it->second.refused.ok()) return {};
  if (!begins_anew(it->second, q)) return it->second.refused;
  groups_.erase(it);
  return {};
}

// A caller that gave up, with a member that was there already?
bool Assembly::begins_anew(const Group& group, const Request& q) {
  return !group.refused.ok() && !q.unnamed && group.names.count(q.name) != 0;
}

std::vector<OperationPtr> Assembly::add(const OperationPtr& op) {
  const auto it = groups_.try_emplace(key_of(op->request)).first;
  Group& group = it->second;
  group.members.push_back(op);
  if (!op->request.unnamed) group.names.insert(op->request.name);
  std::vector<OperationPtr> whole;
  if (++group.count < op->request.group_size) return whole;
  whole.swap(group.members);
  groups_.erase(it);
  return whole;
}

std::vector<OperationPtr> Assembly::refuse(const Request& q, const Status& why) {
  const auto it = groups_.try_emplace(key_of(q)).first;
  Group& group = it->second;
  if (begins_anew(group, q)) group = {};
  if (group.refused.ok()) group.refused = why.with("group '" + q.group + "'");
  if (!q.unnamed) group.names.insert(q.name);
  std::vector<OperationPtr> members;
  members.swap(group.members);
  if (++group.count >= q.group_size) groups_.erase(it);
  return members;
}

std::vector<OperationPtr> Assembly::take_with(const Operation& op) {
  std::vector<OperationPtr> members;
  const auto it = groups_.find(key_of(op.request));
  if (it == groups_.end()) return members;
  bool here = false;
  for (const OperationPtr& member : it->second.members) here = here || member.get() == &op;
  if (!here) return members;
  members.swap(it->second.members);
  groups_.erase(it);
  return members;
}

std::vector<OperationPtr> Assembly::take_all() {
  std::vector<OperationPtr> all;
  for (auto& [key, group] : groups_) all.insert(all.end(), group.members.begin(), group.members.end());
  groups_.clear();
  return all;
}

const Operation* Assembly::oldest_unattended() const {
  const Operation* oldest = nullptr;
  for (const auto& [key, group] : groups_) {
    if (group.members.empty() || !group.members.front()->on_done) continue;
    if (!oldest || group.members.front()->submitted < oldest->submitted) oldest = group.members.front().get();
  }
  return oldest;
}

}  // namespace hvd
