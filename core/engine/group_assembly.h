// Holds the members of a group that this rank submits one by one until the last one arrives, so that the rest of the
// engine never sees part of a group. If one member is refused, the whole group is refused. Members that arrive after
// others were released pass through at once. Not thread-safe.
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

  // Return the error if a member of the group was refused, for a caller that continues with the other members. A caller
  // that gave up and starts again, with a member already seen, gets ok.
  Status refusal(const Request& q);
  // Add a member. Return all members in order if it is the last one. Return only this member if earlier ones were
  // already released. Otherwise return nothing.
  std::vector<OperationPtr> add(const OperationPtr& op);
  // Record that `q` was refused. Return the earlier members, which the rest of the engine has not seen.
  std::vector<OperationPtr> refuse(const Request& q, const Status& why);

  // Remove and return those members of the group of `op` that are present. Return nothing if `op` is not held here.
  std::vector<OperationPtr> take_with(const Operation& op);
  std::vector<OperationPtr> take_all();
  // Return the oldest operation that no caller waits for, or null if there is none.
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
    uint32_t count = 0;  // number of members submitted so far, including refused ones
    Status refused;
    bool given_out = false;       // True once a caller waited for a member while others were missing.
    // Names of all members, set once the group is refused or released. Unnamed members have no name here.
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
  Groups::iterator last_ = groups_.end();  // cached by find(), because the members of a group usually arrive one after another
};

}  // namespace hvd
