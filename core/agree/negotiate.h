// The coordinator's negotiator. It collects the ranks' requests and decides which operations are ready and in which
// order. It does no I/O, starts no threads, and receives the time as an argument.
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
  // `world` is the number of ranks; `labels[r]` names rank r in error messages.
  Negotiator(int world, std::vector<std::string> labels);

  // Record that `rank` is ready for `request`.
  void add_request(int rank, Request request, double now);

  // Return the operations that have become ready since the last call, in order. They are not fused yet.
  std::vector<Ready> take_ready();

  // Drop all pending requests, because a schedule begins. Ranks send them again if the schedule ends before it has executed them.
  void clear_pending();
  // True if any operation or join is waiting for ranks.
  bool has_pending() const { return !pending_.empty() || !joined_.empty(); }
  bool anyone_joined() const { return !joined_.empty(); }
  // True if the operations in `period` can become a schedule, that is, if they include every pending operation. If one were missing, the
  // ranks that submitted it would end each schedule immediately, and the stall check would never see it.
  bool may_be_scheduled(const std::vector<Ready>& period) const;

  const ProcessSetTable& sets() const { return table_; }

  // Operation that has waited too long, and the ranks that it waits for. Used by the stall check. It covers every
  // request without a response: operations that some ranks have not requested, groups of which no rank has submitted
  // some operations, and joins. A join counts as waiting from the last call of join() or the last decided operation,
  // whichever is later.
  struct Waiting {
    std::string name;
    uint32_t set;
    double requested;
    std::vector<int> ready, missing;
  };
  std::vector<Waiting> waiting(double since) const;
  // Return the keys (see key_of()) of all pending operations.
  std::vector<std::string> keys() const;

  // Fail operations that can never become ready because the programs of the ranks differ: operations with one base name but different
  // kinds, requested by different ranks, and groups with one name but different sizes. All must have been waiting since before the time
  // `since`. take_ready() returns the errors, which name both operations.
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
    // Response to the operation. It is set once all ranks have requested the operation, and sent once the whole group
    // is ready.
    std::optional<Ready> decided;
  };
  struct GroupKey {
    uint32_t set;
    uint8_t frontend;
    // Number of operations in the group. Requests with different sizes refer to different groups, so it is part of the key.
    uint32_t size;
    std::string name;
    auto operator<=>(const GroupKey&) const = default;
  };
  struct Group {
    // Number of operations in the group that have been requested by all ranks.
    uint32_t decided = 0;
    // Keys of the group's operations that are ready but held until the group is complete.
    std::vector<Key> held;
    // First error of an operation in the group. All other operations of the group fail with it.
    Status error;
    // True if ranks disagree about the group's size.
    bool over = false;
  };
  struct Answered {
    Status why;
    // Ranks that have requested the failed operation and received its error.
    std::set<int> ranks;
    // Groups that have already counted this failed operation. A late request for it must not be counted again.
    std::set<GroupKey> groups;
  };
  struct Joined {
    // Ranks that have called join(), in the order of their calls. There is at least one.
    std::vector<int> ranks;
    double last = 0;
  };

  // If all required ranks have requested the operation, create its response.
  void settle(const Key& key);
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
  // All requests without a response, except for joins, which are in joined_.
  std::map<Key, Pending> pending_;
  // Groups with at least one operation that all ranks have requested.
  std::map<GroupKey, Group> groups_;
  // True if ranks disagree about the size of any group.
  bool any_over_ = false;
  // Unnamed operations that have failed because ranks disagree about their group. A rank that requests one of them later gets the same
  // error.
  std::map<Key, Answered> answered_;
  // Joins that are still waiting for ranks, keyed by frontend.
  std::map<uint8_t, Joined> joined_;
  // Time in seconds of the latest request from any rank.
  double now_ = 0;
  double last_decision_ = 0;
  std::vector<Ready> ready_;
  std::vector<uint32_t> removed_;
  uint64_t units_ = 0;
};

// Return the sizes for a response that depends on every rank's request. `members` lists the global ranks in set order.
std::vector<int64_t> gather_sizes(Kind kind, const std::vector<RankRequest>& by_rank, const std::vector<int>& members);

}  // namespace hvd
