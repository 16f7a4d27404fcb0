// Topology: the ranks of a job or of a process set, grouped by host. It is plain data and does not change during an epoch.
#pragma once
#include <span>
#include <vector>

#include "base/status.h"

namespace hvd {

// Topology as seen by one rank.
struct Topology {
  int rank = 0;
  int size = 1;
  // Index of each rank's host. Hosts are numbered in the order of their first rank.
  std::vector<int> host;
  // Ranks of each host, in ascending order.
  std::vector<std::vector<int>> members;
  // This rank's index among the ranks on its host.
  int local_rank = 0;
  int local_size = 1;
  // Index of this host among the hosts that have a rank with this rank's local rank.
  int cross_rank = 0;
  // Number of hosts that have a rank with this rank's local rank.
  int cross_size = 1;
  // Smallest number of ranks on any host.
  int slices = 1;
  // True if all hosts have the same number of ranks.
  bool homogeneous = true;

  // Build the topology of `rank`. `host_of[r]` identifies the host of rank r.
  static Status make(int rank, std::span<const int> host_of, Topology* out);
  // Return the topology of a process set to which this rank belongs. `ranks` lists the set's ranks in set order, without duplicates.
  Status subset(std::span<const int> ranks, Topology* out) const;

  int hosts() const { return static_cast<int>(members.size()); }
  bool is_homogeneous() const { return homogeneous; }
  // True if there are several hosts and at least one has several ranks.
  bool nested() const { return hosts() > 1 && hosts() < size; }

  // Return the ranks on this host, in ascending order.
  const std::vector<int>& local_members() const { return members[host[rank]]; }
  // Return the rank on each host that has this rank's local rank, in the order of the hosts. Empty if a host lacks this local rank
  // (local_rank >= slices).
  std::vector<int> cross_members() const;
};

}  // namespace hvd
