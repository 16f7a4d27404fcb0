// The coordinator's part of "announce, agree, execute": collects what ranks announce and decides what is ready, in which order.
// Pure: no I/O, no threads, the time is an argument.
//
// One negotiator decides for all process sets, so there is one total order of operations and overlapping sets cannot deadlock
// (docs/adr/0001-one-coordinator.md).
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/fuse.h"
#include "agree/process_sets.h"
#include "agree/request.h"
#include "agree/validate.h"

namespace hvd {

class Negotiator {
 public:
  Negotiator(int world, std::vector<std::string> labels);

  // Rank `rank` is ready for `request`.
  void announce(int rank, Request request, double now);

  // What has become ready since the last call, one operation each, in order; to be fused.
  std::vector<Ready> take_ready();

  // Forgets all that is announced but not ready (a schedule takes over; ranks announce it again if it fails).
  void clear_pending();
  // Does anybody wait for anything?
  bool has_pending() const { return !pending_.empty() || !joined_.empty(); }
  bool anyone_joined() const { return !joined_.empty(); }
  // May a schedule of `period` take over what is pending? Not if it does not know all of that: whoever has submitted what it does not
  // know would revoke it at once, again and again, and nothing would ever be seen to wait for long.
  bool may_be_scheduled(const std::vector<Ready>& period) const;

  const ProcessSetTable& sets() const { return table_; }

  // For the stall check: what waits since before `since`, and for whom. This is everything that is announced and not decided: operations
  // that ranks lack, groups of which members lack everywhere, and joins, if nothing else has been decided since either.
  struct Waiting {
    std::string name;
    uint32_t set;
    double announced;
    std::vector<int> ready, missing;
  };
  std::vector<Waiting> waiting(double since) const;
  // key_of() all that waits for anything.
  std::vector<std::string> keys() const;

  // Operations of different kinds under one base name, announced by disjoint ranks before `since`: the program diverged and neither will
  // ever be ready. They become errors that name both operations (taken with take_ready()). Likewise groups of one name and different sizes.
  void fail_diverged(double since);

 private:
  struct Key {
    uint32_t set;
    uint8_t face;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };
  struct Pending {
    std::vector<Announced> by_rank;
    double first = 0;
    std::optional<Ready> decided;  // all ranks have spoken; held for the rest of its group
  };
  struct GroupKey {
    uint32_t set;
    uint8_t face;
    uint32_t size;  // ranks that disagree about it mean different groups
    std::string name;
    auto operator<=>(const GroupKey&) const = default;
  };
  struct Group {
    uint32_t decided = 0;   // members about which all ranks have spoken
    std::vector<Key> held;  // of them, those that wait in pending_
    Status error;           // of a member: all others share it
    bool over = false;      // ranks disagree about its size
  };
  struct Answered {
    Status why;
    std::set<int> ranks;         // that have announced it
    std::set<GroupKey> groups;   // in which it has been counted
  };
  struct Joined {
    std::vector<int> ranks;  // in order of joining; not empty
    double last = 0;
  };

  void settle(const Key& key);         // ready now? then decide it
  bool complete(const Key& key, const Pending& p) const;
  Response decide(const Key& key, Pending& p);
  Status check_announced(const std::vector<Announced>& by_rank, const std::vector<int>& members) const;
  std::vector<std::pair<Key, Status>> unlike_groups(double since) const;
  static std::set<GroupKey> groups_of(const Key& key, const Pending& p);
  void emit(const Key& key, Ready ready);
  void fail(const Key& key, const Status& why);
  void fail_rest();
  bool answer_late(const Key& key, int rank, const Request& request);
  void push(Ready ready, uint64_t unit);
  void release(const GroupKey& key, Group* group);
  void spoil(const Key& key, const Status& why);
  void join(int rank, uint8_t face, double now);
  const std::vector<int>& joined(uint8_t face) const;
  void settle_all_of_world();
  void settle_removed();

  int world_;
  std::vector<std::string> labels_;
  ProcessSetTable table_;
  // All that ranks have announced and nobody has been told of yet; what is not in here, nor has joined, waits for nothing.
  std::map<Key, Pending> pending_;
  std::map<GroupKey, Group> groups_;   // of which something is decided
  bool any_over_ = false;              // is one of them?
  std::map<Key, Answered> answered_;   // by fail_rest(): who announces it later had submitted it before it heard of the error
  std::map<uint8_t, Joined> joined_;   // by face
  double now_ = 0;                     // of the last announcement
  double last_decision_ = 0;
  std::vector<Ready> ready_;
  std::vector<uint32_t> removed_;
  uint64_t units_ = 0;
};

// The responses' sizes for the operations whose result depends on every rank's request. `members` in set order.
std::vector<int64_t> gather_sizes(Kind kind, const std::vector<Announced>& by_rank, const std::vector<int>& members);

}  // namespace hvd
