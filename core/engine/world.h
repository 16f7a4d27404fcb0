// World: everything through which this rank can move data, and one Comm for each process set that it belongs to. Used only by the
// thread that drives the engine.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "collectives/comm.h"
#include "engine/options.h"
#include "transport/node_group.h"
#include "transport/waiter.h"

namespace hvd {

class World {
 public:
  explicit World(EngineOptions& options);  // takes links, event fds and segment out of the options
  ~World();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(node_of_.size()); }
  bool one_node() const { return one_node_; }
  // Several ranks, each alone on its node: there is a link between any two.
  bool flat() const { return flat_; }
  int local_rank() const { return local_rank_; }
  int local_size() const { return static_cast<int>(locals_.size()); }
  Segment& segment() { return *segment_; }
  const std::shared_ptr<Segment>& segment_pointer() const { return segment_; }
  Waiter& waiter() { return waiter_; }
  BellRef bell() const { return bells_[local_rank_]; }
  BellRef bell_of(int local_rank) const { return bells_[local_rank]; }
  // An error that names a rank whose host has been silent for the heartbeat timeout though it owed an answer. Cheap: looks now and then.
  Status look_for_silence();
  // Seconds between two looks while peers are waited for.
  double between_looks() const { return look_every_ > 0 && !one_node_ ? look_every_ : kForever; }
  const std::vector<int>& locals() const { return locals_; }  // global ranks on my node
  // Through whom rank 0 reaches that rank in the control plane.
  int below_root(int rank) const;

  // All ranks call these at the same place in the order of operations. `generation` grows with each set.
  void add_set(uint32_t id, uint32_t generation, const std::vector<int>& ranks);
  void remove_set(uint32_t id);
  // Null when I am not a member.
  Comm* comm(uint32_t set);
  // Bytes that collectives have handed to links. May be asked by any thread.
  uint64_t wire_bytes() const { return traffic_.get(); }
  size_t scratch_held() const { return scratch_.held(); }
  uint64_t unstaged_bytes() const { return ledger_.unstaged.load(std::memory_order_relaxed); }

 private:
  struct SetComms {
    std::unique_ptr<NodeGroup> group;  // members on my node
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
  std::vector<BellRef> bells_;
  std::map<int, std::unique_ptr<Link>> links_;
  StagingLedger ledger_;
  Scratch scratch_;
  Counter traffic_;
  Waiter waiter_;
  std::map<uint32_t, std::unique_ptr<SetComms>> sets_;
};

}  // namespace hvd
