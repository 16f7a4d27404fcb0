// Table of the existing process sets, as decided by the coordinator. Does no I/O and starts no threads.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"

namespace hvd {

// Global ranks of each set in ascending order, keyed by the set's id. Equal on every rank.
struct ProcessSetTable {
  std::map<uint32_t, std::vector<int>> sets;
  // Generation number of the newest process set (see NodeGroup).
  uint64_t generation = 0;

  uint32_t lowest_free_id() const;
  // Return the id of the process set with exactly these ranks, or -1.
  int64_t find(const std::vector<int>& ranks) const;

  // Add a process set that contains `ranks`. `world` is the number of ranks in the job. On return, `sizes` holds the
  // id, the generation and the ranks of the new set, as in a response.
  Status add(const std::vector<int64_t>& ranks, int world, std::vector<int64_t>* sizes);
  // Remove a process set. Return false if the set does not exist or is the global set.
  bool remove(uint32_t id);
};

}  // namespace hvd
