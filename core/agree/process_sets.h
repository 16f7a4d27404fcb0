// Which process sets there are, as the coordinator decides it. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"

namespace hvd {

struct ProcessSetTable {  // id -> sorted global ranks; the same on every rank
  std::map<uint32_t, std::vector<int>> sets;
  uint64_t generation = 0;  // of the newest set, see NodeGroup

  uint32_t lowest_free_id() const;
  // The id of the set with exactly these ranks, or -1.
  int64_t find(const std::vector<int>& ranks) const;

  // Adds the set of `ranks`; `world`: how many there are. `sizes` is what the response says: id, generation, the ranks.
  Status add(const std::vector<int64_t>& ranks, int world, std::vector<int64_t>* sizes);
  // False: there is no such set, or it is everybody's.
  bool remove(uint32_t id);
};

}  // namespace hvd
