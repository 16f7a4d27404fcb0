// The coordinator's part of "announce, agree, execute": collects what ranks announce and decides what is ready, in which order.
// Pure: no I/O, no threads, the time is an argument.
//
// One negotiator decides for all process sets, so there is one total order of operations and overlapping sets cannot deadlock
// (docs/adr/0001-one-coordinator.md).
#pragma once
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/fuse.h"
#include "engine/request.h"
#include "engine/validate.h"

namespace hvd {

struct ProcessSetTable {  // id -> sorted global ranks; the same on every rank
  std::map<uint32_t, std::vector<int>> sets;
  uint32_t lowest_free_id() const;
  // The id of the set with exactly these ranks, or -1.
  int64_t find(const std::vector<int>& ranks) const;
};

class Negotiator {
 public:
  Negotiator(int world, std::vector<std::string> labels);

  // Rank `rank` is ready for `request`.
  void announce(int rank, Request request, double now);

  // What has become ready since the last call, one operation each, in order; to be fused.
  std::vector<Ready> take_ready();

  // Forgets all that is announced but not ready (a schedule takes over; ranks announce it again if it fails).
  void clear_pending();
  bool has_pending() const { return !pending_.empty() || !groups_.empty(); }
  bool anyone_joined() const { return !joined_.empty(); }

  const ProcessSetTable& sets() const { return table_; }

  // For the stall check: what waits since before `since`, and for whom.
  struct Waiting {
    std::string name;
    uint32_t set;
    double announced;
    std::vector<int> ready, missing;
  };
  std::vector<Waiting> waiting(double since) const;

  // Operations of different kinds under one base name, announced by disjoint ranks before `since`: the program diverged and neither will
  // ever be ready. They become errors that name both operations (taken with take_ready()).
  void fail_diverged(double since);

 private:
  struct Pending {
    std::vector<Announced> by_rank;
    double first = 0;
  };
  struct Group {
    uint32_t size = 0;
    uint32_t decided = 0;      // members about which all ranks have spoken
    std::vector<Ready> ready;  // held until all are
    Status error;
  };
  struct Key {
    uint32_t set;
    uint8_t face;
    std::string name;
    auto operator<=>(const Key&) const = default;
  };

  void settle(const Key& key);         // ready now? then decide it
  bool complete(const Key& key, const Pending& p) const;
  Response decide(const Key& key, Pending& p);
  Status check_announced(const std::vector<Announced>& by_rank, const std::vector<int>& members) const;
  void emit(Ready ready, const Request& like);
  void join(int rank, uint8_t face);
  const std::vector<int>& joined(uint8_t face) const;
  void release(Group* group, const std::string& name);
  void settle_all_of_world();
  void settle_removed();

  int world_;
  std::vector<std::string> labels_;
  ProcessSetTable table_;
  std::map<Key, Pending> pending_;
  std::map<Key, Group> groups_;        // by the group's name
  std::map<uint8_t, std::vector<int>> joined_;  // by face, in order of joining; not empty
  std::vector<Ready> ready_;
  std::vector<uint32_t> removed_;
  uint64_t units_ = 0;
  uint64_t generation_ = 0;            // of process sets, see NodeGroup
};

// The responses' sizes for the operations whose result depends on every rank's request. `members` in set order.
std::vector<int64_t> gather_sizes(Kind kind, const std::vector<Announced>& by_rank, const std::vector<int>& members);

}  // namespace hvd
