// Groups whose members this rank submits one after the other: held until the last one comes, so that nobody else ever sees a part of a
// group. A member that is refused refuses its group. Members that come after others have been given out go on at once. Not thread-safe.
#pragma once
#include <compare>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/operation.h"

namespace hvd {

class Assembly {
 public:
  static bool concerns(const Request& q) { return q.group_size > 1 && !q.group.empty(); }

  // Has a member of the group been refused? Then the caller, which goes on with the others, hears why; a caller that gave up and begins
  // anew, with a member that was there already, does not.
  Status refusal(const Request& q);
  // Another member. All of them, in order, once it is the last one; it alone if those before have been taken out; else nothing.
  std::vector<OperationPtr> add(const OperationPtr& op);
  // `q` was refused; returns the members before it, which nobody else has seen.
  std::vector<OperationPtr> refuse(const Request& q, const Status& why);

  // Takes out what there is of the group to which `op` belongs; nothing if it is not held here.
  std::vector<OperationPtr> take_with(const Operation& op);
  std::vector<OperationPtr> take_all();
  // Of operations that nobody waits for, the one that came first; null if there is none.
  const Operation* oldest_unattended() const;

 private:
  struct Key {
    uint32_t set;
    uint8_t face;
    Kind kind;
    uint32_t size;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };
  struct Group {
    std::vector<OperationPtr> members;
    uint32_t count = 0;  // of all that have been submitted, refused ones too
    Status refused;
    bool given_out = false;       // somebody waited for a member while others were missing
    std::set<std::string> names;  // once one of these two has happened: of all of them; unnamed ones have none
  };
  using Groups = std::map<Key, Group>;
  static bool begins_anew(const Group& group, const Request& q);
  static void note_members(Group* group);
  static Key key_of(const Request& q) { return {q.set, q.face, q.kind, q.group_size, q.group}; }
  Groups::iterator find(const Request& q);
  Groups::iterator find_or_add(const Request& q);
  void erase(Groups::iterator group);

  Groups groups_;
  Groups::iterator last_ = groups_.end();  // found last: members of a group mostly come one after the other
};

}  // namespace hvd
