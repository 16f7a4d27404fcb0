// Topology: ranks grouped by host. Pure data, immutable for an epoch. A process set has its own topology.
#pragma once
#include <span>
#include <vector>

#include "base/status.h"

namespace hvd {

// Hosts and ranks as seen by one rank.
struct Topology {
  int rank = 0;  // number of this rank
  int size = 1;
  std::vector<int> host;                  // Host index by rank; hosts are numbered in rank order.
  std::vector<std::vector<int>> members;  // Ranks of each host, ascending.
  int local_rank = 0;                     // This rank's index among the members of its host.
  int local_size = 1;
  int cross_rank = 0;       // Index of this host among the hosts that have a member with this local rank.
  int cross_size = 1;       // Number of such hosts.
  int slices = 1;           // Smallest number of members on any host.
  bool homogeneous = true;  // All hosts have the same number of members.

  // `host_of`: by rank, a number that is equal for the ranks of one host.
  static Status make(int rank, std::span<const int> host_of, Topology* out);
  // Return the topology of a process set for the same rank. `ranks`: its members in set order, without duplicates,
  // including this rank.
  Status subset(std::span<const int> ranks, Topology* out) const;

  int hosts() const { return static_cast<int>(members.size()); }
  bool is_homogeneous() const { return homogeneous; }
  // True if there are several hosts and some have several members.
  bool nested() const { return hosts() > 1 && hosts() < size; }

  // Ranks on this host, in order.
  const std::vector<int>& local_members() const { return members[host[rank]]; }
  // Ranks with this local rank on all hosts, in order of hosts; empty if some host has none (local_rank >= slices).
  std::vector<int> cross_members() const;
};

}  // namespace hvd
