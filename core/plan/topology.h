// Who sits where: ranks grouped by host. Pure data; immutable for an epoch. The members of a process set have a topology of their
// own.
#pragma once
#include <span>
#include <vector>

#include "base/status.h"

namespace hvd {

struct Topology {
  int rank = 0;  // mine
  int size = 1;
  std::vector<int> host;                  // by rank: index of its host; hosts are numbered as they appear in rank order
  std::vector<std::vector<int>> members;  // by host: its ranks, ascending
  int local_rank = 0;                     // my index among the members of my host
  int local_size = 1;
  int cross_rank = 0;       // my host's index among the hosts that have a member with my local rank
  int cross_size = 1;       // how many hosts have one
  int slices = 1;           // smallest number of members on any host
  bool homogeneous = true;  // all hosts have equally many members

  // `host_of`: by rank, any number or the same number for the ranks of one host.
  static Status make(int rank, std::span<const int> host_of, Topology* out);
  // The topology of a process set, seen by the same rank. `ranks`: its members in set order, each once, mine among them.
  Status subset(std::span<const int> ranks, Topology* out) const;

  int hosts() const { return static_cast<int>(members.size()); }
  bool is_homogeneous() const { return homogeneous; }
  // Several hosts, and several members on some of them.
  bool nested() const { return hosts() > 1 && hosts() < size; }

  // Ranks on my host, in order.
  const std::vector<int>& local_members() const { return members[host[rank]]; }
  // Ranks with my local rank on all hosts, in order of hosts; empty when some host has none (local_rank >= slices).
  std::vector<int> cross_members() const;
};

}  // namespace hvd
