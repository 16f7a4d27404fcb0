#include "agree/process_sets.h"

#include <algorithm>
#include <string>

#include "agree/request.h"
#include "base/limits.h"

namespace hvd {

uint32_t ProcessSetTable::lowest_free_id() const {
  uint32_t id = 1;
  while (sets.count(id)) ++id;
  return id;
}

int64_t ProcessSetTable::find(const std::vector<int>& ranks) const {
  for (const auto& [id, members] : sets) {
    if (members == ranks) return id;
  }
  return -1;
}

Status ProcessSetTable::add(const std::vector<int64_t>& wanted, int world, std::vector<int64_t>* sizes) {
  const std::vector<int> ranks(wanted.begin(), wanted.end());
  const auto refuse = [](std::string why) { return Status(Code::invalid_argument, std::move(why)); };
  if (const int64_t known = find(ranks); known >= 0)
    return refuse("process set " + shape_string(wanted) + " exists already with id " + std::to_string(known));
  const uint32_t id = lowest_free_id();
  if (id >= kMaxProcessSets)
    return refuse("at most " + std::to_string(kMaxProcessSets) + " process sets can exist at a time; remove one first");
  if (ranks.empty() || ranks.front() < 0 || ranks.back() >= world || !std::is_sorted(ranks.begin(), ranks.end())) {
    return refuse("ranks of a process set must be ascending and 0 to " + std::to_string(world - 1) + ", got " + shape_string(wanted));
  }
  sets[id] = ranks;
  *sizes = {id, static_cast<int64_t>(++generation)};
  sizes->insert(sizes->end(), wanted.begin(), wanted.end());
  return {};
}

bool ProcessSetTable::remove(uint32_t id) { return id != 0 && sets.erase(id) > 0; }

}  // namespace hvd
