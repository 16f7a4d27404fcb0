// Negotiator of the coordinator: collects the ranks' requests and decides which operations are ready, and in which
// order. Pure: no I/O, no threads, time is an argument.
//
// One negotiator serves all process sets, so operations have one total order and overlapping sets cannot deadlock
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
  // `world`: number of ranks. `labels`: by rank, for messages.
  Negotiator(int world, std::vector<std::string> labels);

  // Record that `rank` is ready for `request`.
  void add_request(int rank, Request request, double now);

  // Take the operations that became ready since the last call, one Ready each, in order, before fusion.
  std::vector<Ready> take_ready();

  // Drop all requests that are not ready. A schedule takes over; ranks request again if it ends.
  void clear_pending();
  // True if any operation or join waits for ranks.
  bool has_pending() const { return !pending_.empty() || !joined_.empty(); }
  bool anyone_joined() const { return !joined_.empty(); }
  // True if a schedule of `period` covers all pending operations. Otherwise a rank that has submitted another one would
  // revoke the schedule at once, again and again, and no operation would appear stalled.
  bool may_be_scheduled(const std::vector<Ready>& period) const;

  const ProcessSetTable& sets() const { return table_; }

  // Operations that have waited since before `since`, and for which ranks; used by the stall check. Covers everything
  // requested but undecided: operations not requested by all ranks, groups with members missing on every rank, and
  // joins if nothing else was decided since.
  struct Waiting {
    std::string name;
    uint32_t set;
    double requested;
    std::vector<int> ready, missing;
  };
  std::vector<Waiting> waiting(double since) const;
  // Return key_of() of all that waits.
  std::vector<std::string> keys() const;

  // Fail operations of different kinds with one base name that were requested by disjoint ranks before `since`: the
  // programs have diverged, and neither can become ready. The errors name both operations and are returned by
  // take_ready(). The same for groups with one name and different sizes.
  void fail_diverged(double since);

 private:
  struct Key {
    uint32_t set;
    uint8_t frontend;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };
  struct Pending {
    std::vector<RankRequest> by_rank;
    double first = 0;
    std::optional<Ready> decided;  // set once requested by all ranks; held until its group is complete
  };
  struct GroupKey {
    uint32_t set;
    uint8_t frontend;
    uint32_t size;  // part of the key, because ranks that disagree about the size mean different groups
    std::string name;
    auto operator<=>(const GroupKey&) const = default;
  };
  struct Group {
    uint32_t decided = 0;   // number of members that all ranks have requested
    std::vector<Key> held;  // decided members that are held in pending_
    Status error;           // first error of a member; all others fail with it
    bool over = false;      // ranks disagree about the group's size
  };
  struct Answered {
    Status why;
    std::set<int> ranks;         // ranks that have requested the operation
    std::set<GroupKey> groups;   // groups that have counted the operation
  };
  struct Joined {
    std::vector<int> ranks;  // ranks in order of joining; not empty
    double last = 0;
  };

  void settle(const Key& key);         // decide the operation if it is ready now
  bool complete(const Key& key, const Pending& p) const;
  Response decide(const Key& key, Pending& p);
  Status check_requests(const std::vector<RankRequest>& by_rank, const std::vector<int>& members) const;
  std::vector<std::pair<Key, Status>> unlike_groups(double since) const;
  static std::set<GroupKey> groups_of(const Key& key, const Pending& p);
  void emit(const Key& key, Ready ready);
  void fail(const Key& key, const Status& why);
  void fail_rest();
  bool answer_late(const Key& key, int rank, const Request& request);
  void push(Ready ready, uint64_t unit);
  void release(const GroupKey& key, Group* group);
  void spoil(const Key& key, const Status& why);
  void join(int rank, uint8_t frontend, double now);
  const std::vector<int>& joined(uint8_t frontend) const;
  void settle_all_of_world();
  void settle_removed();

  int world_;
  std::vector<std::string> labels_;
  ProcessSetTable table_;
  // All requests without a response. What is neither here nor in joined_ waits for nothing.
  std::map<Key, Pending> pending_;
  std::map<GroupKey, Group> groups_;   // groups with at least one decided member
  bool any_over_ = false;              // true if any of them has `over` set
  // Operations failed by fail_rest(). A rank that requests one later had submitted it before it received the error.
  std::map<Key, Answered> answered_;
  std::map<uint8_t, Joined> joined_;   // key: frontend
  double now_ = 0;                     // time of the last request
  double last_decision_ = 0;
  std::vector<Ready> ready_;
  std::vector<uint32_t> removed_;
  uint64_t units_ = 0;
};

// Return the sizes of a response whose result depends on every rank's request. `members` in set order.
std::vector<int64_t> gather_sizes(Kind kind, const std::vector<RankRequest>& by_rank, const std::vector<int>& members);

}  // namespace hvd
