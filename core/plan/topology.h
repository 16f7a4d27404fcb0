// Topology: ranks grouped by host. It is plain data and does not change during an epoch. A process set has its own
// topology.
#pragma once
#include <span>
#include <vector>

#include "base/status.h"

namespace hvd {

// Hosts and ranks as seen by one rank.
struct Topology {
  int rank = 0;  // global number of this rank
  int size = 1;
  std::vector<int> host;                  // Host of each rank, as an index; hosts are numbered in the order of their first rank.
  std::vector<std::vector<int>> members;  // Ranks of each host, ascending.
  int local_rank = 0;                     // Index of this rank among the members of its host.
  int local_size = 1;
  int cross_rank = 0;       // Index of this host among the hosts that have a member with this local rank.
  int cross_size = 1;       // Number of such hosts.
  int slices = 1;           // Smallest number of members on any host.
  bool homogeneous = true;  // True if all hosts have the same number of members.

  // `host_of` has for each rank a number that is equal for the ranks of one host.
  static Status make(int rank, std::span<const int> host_of, Topology* out);
  // Return the topology of a process set for the same rank. `ranks` lists its members in set order, without duplicates
  // and including this rank.
  Status subset(std::span<const int> ranks, Topology* out) const;

  int hosts() const { return static_cast<int>(members.size()); }
  bool is_homogeneous() const { return homogeneous; }
  // True if there are several hosts and at least one has several members.
  bool nested() const { return hosts() > 1 && hosts() < size; }

  // Return the ranks on this host, in order.
  const std::vector<int>& local_members() const { return members[host[rank]]; }
  // Return the ranks with this local rank on all hosts, in the order of the hosts. Empty if some host has no such rank
  // (local_rank >= slices).
  std::vector<int> cross_members() const;
};

}  // namespace hvd
