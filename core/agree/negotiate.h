// Negotiator of the coordinator: collects the ranks' requests and decides which operations are ready, and in which
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
  // `world` is the number of ranks; `labels[r]` names rank r in messages.
  Negotiator(int world, std::vector<std::string> labels);

  // Record that `rank` is ready for `request`.
  void add_request(int rank, Request request, double now);

  // Take the operations that became ready since the last call, in order and not yet fused.
  std::vector<Ready> take_ready();

  // Drop all requests that are not ready, because a schedule takes over. Ranks send them again if the schedule ends.
  void clear_pending();
  // True if any operation or join waits for ranks.
  bool has_pending() const { return !pending_.empty() || !joined_.empty(); }
  bool anyone_joined() const { return !joined_.empty(); }
  // True if a schedule of `period` covers all pending operations. If it did not, a rank that has submitted an operation
  // outside the schedule would revoke every schedule at once, and the stall check would never see a stalled operation.
  bool may_be_scheduled(const std::vector<Ready>& period) const;

  const ProcessSetTable& sets() const { return table_; }

  // Return the operations that have waited since before `since`, and the ranks that they wait for; used by the stall
  // check. This covers every request without a response: operations that some ranks have not requested, groups with
  // members that no rank has submitted, and joins if nothing else was decided since.
  struct Waiting {
    std::string name;
    uint32_t set;
    double requested;
    std::vector<int> ready, missing;
  };
  std::vector<Waiting> waiting(double since) const;
  // Return the keys (see key_of()) of all operations that still wait.
  std::vector<std::string> keys() const;

  // Fail operations that can never become ready because the ranks' programs have diverged: operations of different
  // kinds with the same base name that disjoint sets of ranks requested before `since`. Groups with the same name but
  // different sizes fail in the same way. take_ready() returns the errors, which name both operations.
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
    std::optional<Ready> decided;  // set once all ranks have requested the operation; held until its group is complete
  };
  struct GroupKey {
    uint32_t set;
    uint8_t frontend;
    uint32_t size;  // part of the key, because ranks that disagree about the size mean different groups
    std::string name;
    auto operator<=>(const GroupKey&) const = default;
  };
  struct Group {
    uint32_t decided = 0;   // Number of members that all ranks have requested.
    std::vector<Key> held;  // Members that are decided and held in pending_.
    Status error;           // First error of a member; all others fail with it.
    bool over = false;      // True if ranks disagree about the group's size.
  };
  struct Answered {
    Status why;
    std::set<int> ranks;         // Ranks that have requested the operation.
    std::set<GroupKey> groups;   // Groups that have counted the operation.
  };
  struct Joined {
    std::vector<int> ranks;  // ranks in order of joining; not empty
    double last = 0;
  };

  void settle(const Key& key);         // Decide the operation if it is ready now.
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
  // All requests without a response. An operation that is neither here nor in joined_ is not waiting.
  std::map<Key, Pending> pending_;
  std::map<GroupKey, Group> groups_;   // Groups with at least one decided member.
  bool any_over_ = false;              // True if any group has `over` set.
  // Operations failed by fail_rest(). A rank that requests one of them later submitted it before the error arrived.
  std::map<Key, Answered> answered_;
  std::map<uint8_t, Joined> joined_;   // Joins that wait for ranks, keyed by frontend.
  double now_ = 0;                     // Time of the last request, in seconds.
  double last_decision_ = 0;
  std::vector<Ready> ready_;
  std::vector<uint32_t> removed_;
  uint64_t units_ = 0;
};

// Return the sizes of a response whose result depends on every rank's request. `members` lists the global ranks in set
// order.
std::vector<int64_t> gather_sizes(Kind kind, const std::vector<RankRequest>& by_rank, const std::vector<int>& members);

}  // namespace hvd
