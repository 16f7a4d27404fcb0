// Assembly of groups, whose operations this rank submits one by one. They are held until the last one arrives, so that the rest of the
// engine never sees part of a group. If one operation is rejected, the whole group is. If a group was released incomplete, its remaining
// operations are not held. Not thread-safe.
#pragma once
#include <compare>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/operation.h"

namespace hvd {

class GroupAssembly {
 public:
  static bool concerns(const Request& q) { return q.group_size > 1 && !q.group.empty(); }

  // Return the error of the group of `q` if it was rejected, so that its remaining operations fail too. Return ok if the caller starts the
  // group again, by submitting an operation that was already seen.
  Status refusal(const Request& q);
  // Add an operation to its group. If this completes the group, return all of its operations in order. If the group was released
  // incomplete, return only this operation. Otherwise, return nothing.
  std::vector<OperationPtr> add(const OperationPtr& op);
  // Record that `q` was rejected. Return the operations of its group that are held here.
  std::vector<OperationPtr> refuse(const Request& q, const Status& why);

  // Remove and return all operations of the group that contains `op`, or nothing if `op` is not held here.
  std::vector<OperationPtr> take_with(const Operation& op);
  std::vector<OperationPtr> take_all();
  // Return the oldest operation for which no caller is waiting, or null if there is none.
  const Operation* oldest_unattended() const;

 private:
  struct Key {
    uint32_t set;
    uint8_t frontend;
    Kind kind;
    uint32_t size;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };
  struct Group {
    std::vector<OperationPtr> members;
    // Number of submitted operations, including rejected ones.
    uint32_t count = 0;
    Status refused;
    // True once the group was released incomplete, because a caller waited for one of its operations.
    bool given_out = false;
    // Names of the group's named operations, set once the group is rejected or released.
    std::set<std::string> names;
  };
  using Groups = std::map<Key, Group>;
  static bool begins_anew(const Group& group, const Request& q);
  static void note_members(Group* group);
  static Key key_of(const Request& q) { return {q.set, q.frontend, q.kind, q.group_size, q.group}; }
  Groups::iterator find(const Request& q);
  Groups::iterator find_or_add(const Request& q);
  void erase(Groups::iterator group);

  Groups groups_;
  // Last result of find(). The operations of a group usually arrive one after another.
  Groups::iterator last_ = groups_.end();
};

}  // namespace hvd
