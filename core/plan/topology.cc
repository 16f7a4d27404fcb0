#include "plan/topology.h"

#include <algorithm>
#include <map>
#include <string>

namespace hvd {

Status Topology::make(int rank, std::span<const int> host_of, Topology* out) {
  const int size = static_cast<int>(host_of.size());
  if (rank < 0 || rank >= size) {
    return Status(Code::invalid_argument,
                  "rank must be at least 0 and less than the number of ranks (" + std::to_string(size) + "), got " + std::to_string(rank));
  }
  Topology t;
  t.rank = rank;
  t.size = size;
  std::map<int, int> index;
  for (int r = 0; r < size; ++r) {
    const int h = index.emplace(host_of[r], static_cast<int>(index.size())).first->second;
    if (h == static_cast<int>(t.members.size())) t.members.emplace_back();
    t.host.push_back(h);
    t.members[h].push_back(r);
  }
  const auto& local = t.local_members();
  t.local_size = static_cast<int>(local.size());
  t.local_rank = static_cast<int>(std::find(local.begin(), local.end(), rank) - local.begin());
  t.cross_rank = t.cross_size = 0;
  t.slices = size;
  for (int h = 0; h < t.hosts(); ++h) {
    const int n = static_cast<int>(t.members[h].size());
    t.slices = std::min(t.slices, n);
    t.homogeneous = t.homogeneous && n == t.local_size;
    if (n > t.local_rank) {
      t.cross_rank += h < t.host[rank];
      ++t.cross_size;
    }
  }
  *out = std::move(t);
  return {};
}

Status Topology::subset(std::span<const int> ranks, Topology* out) const {
  std::vector<int> host_of;
  std::vector<bool> seen(size);
  int own = -1;
  for (int r : ranks) {
    if (r < 0 || r >= size) {
      return Status(Code::invalid_argument, "process set with rank " + std::to_string(r) + " in a world of " + std::to_string(size));
    }
    if (seen[r]) return Status(Code::invalid_argument, "process set with rank " + std::to_string(r) + " twice");
    seen[r] = true;
    if (r == rank) own = static_cast<int>(host_of.size());
    host_of.push_back(host[r]);
  }
  if (own < 0) return Status(Code::invalid_argument, "rank " + std::to_string(rank) + " is not a member of the process set");
  return make(own, host_of, out);
}

std::vector<int> Topology::cross_members() const {
  std::vector<int> result;
  if (local_rank >= slices) return result;
  for (const auto& on_host : members) result.push_back(on_host[local_rank]);
  return result;
}

}  // namespace hvd
