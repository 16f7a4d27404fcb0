// Connections of this rank: its topology, data links and shared memory, with one Comm for each process set that the
// rank belongs to. Used only by the thread that runs the engine's progress loop.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "collectives/comm.h"
#include "engine/options.h"
#include "transport/node_group.h"
#include "transport/waiter.h"

namespace hvd {

class Connections {
 public:
  // Take ownership of the links, event descriptors and shared-memory segment in `options`.
  explicit Connections(EngineOptions& options);
  ~Connections();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(node_of_.size()); }
  bool one_node() const { return one_node_; }
  // True if the job has several ranks, each on its own node. Every pair of ranks is then connected by a link.
  bool flat() const { return flat_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return static_cast<int>(locals_.size()); }
  Segment& segment() { return *segment_; }
  const std::shared_ptr<Segment>& segment_pointer() const { return segment_; }
  Waiter& waiter() { return waiter_; }
  WakeupEvent wakeup() const { return wakeups_[local_rank_]; }
  WakeupEvent wakeup_of(int local_rank) const { return wakeups_[local_rank]; }
  // Return an error that names a rank whose host has not acknowledged data within the heartbeat timeout. Cheap to call often, because the
  // links are checked only at intervals.
  Status look_for_silence();
  // Return the seconds until look_for_silence() must be called again while this rank waits for peers.
  double between_looks() const { return look_every_ > 0 && !one_node_ ? look_every_ : kForever; }
  const std::vector<int>& locals() const { return locals_; }
  // Return rank 0's neighbour in the control tree through which it reaches `rank`.
  int below_root(int rank) const;

  // Add or remove a process set. Every rank must call these functions at the same point in the order of operations.
  // `generation` increases with each new set.
  void add_set(uint32_t id, uint32_t generation, const std::vector<int>& ranks);
  void remove_set(uint32_t id);
  // Set the size thresholds of all process sets. Every rank must call this at the same point in the order of
  // operations.
  void set_tuning(const Tuning& tuning);
  // Return the Comm of a process set, or null if this rank is not in the set.
  Comm* comm(uint32_t set);
  // Return the number of bytes that collectives have sent over links. Callable from any thread.
  uint64_t wire_bytes() const { return traffic_.get(); }
  size_t scratch_held() const { return scratch_.held(); }
  uint64_t unstaged_bytes() const { return ledger_.unstaged.load(std::memory_order_relaxed); }

 private:
  struct SetComms {
    // Shared-memory group of the process set's ranks on this node.
    std::unique_ptr<NodeGroup> group;
    Comm comm, local, cross;
  };
  Comm sub_comm(const std::vector<int>& ranks, bool links);
  Link* link_to(int rank);
  void build_hierarchy(SetComms* set, const std::vector<int>& ranks);

  int rank_;
  std::vector<int> node_of_;
  std::vector<int> locals_;
  int local_rank_ = 0;
  bool one_node_ = true;
  bool flat_ = false;
  std::vector<std::string> labels_;
  double timeout_;
  double heartbeat_, look_every_;
  Clock::time_point looked_{};
  Tuning tuning_;
  std::shared_ptr<Segment> segment_;
  std::vector<int> event_fds_;
  std::vector<WakeupEvent> wakeups_;
  std::map<int, std::unique_ptr<Link>> links_;
  StagingLedger ledger_;
  Scratch scratch_;
  Counter traffic_;
  Waiter waiter_;
  std::map<uint32_t, std::unique_ptr<SetComms>> sets_;
};

}  // namespace hvd
