// Requests and rank labels for tests of the coordinator.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "../contains.h"
#include "agree/coordinator.h"

namespace hvd::testing {

inline std::vector<std::string> labels(int n) {
  std::vector<std::string> all;
  for (int r = 0; r < n; ++r) all.push_back("rank " + std::to_string(r) + " on host" + std::to_string(r));
  return all;
}

inline Request request(const std::string& name, Kind kind = Kind::allreduce, std::vector<int64_t> shape = {2}) {
  Request q;
  q.name = name;
  q.kind = kind;
  q.shape = std::move(shape);
  return q;
}

inline std::vector<std::string> names(const std::vector<Ready>& ready) {
  std::vector<std::string> all;
  for (const Ready& r : ready) all.push_back(r.response.names.front());
  return all;
}
using Names = std::vector<std::string>;

inline Request set_request(Kind kind, std::vector<int64_t> splits, const std::string& name) {
  Request q = request(name, kind, {});
  q.unnamed = true;
  q.splits = std::move(splits);
  return q;
}

// `unit`: number of a group of two; 0: not in a group.
inline Ready ready_of(const std::string& name, size_t bytes, uint64_t unit = 0) {
  Ready r;
  r.response.names = {name};
  r.response.shapes = {{static_cast<int64_t>(bytes)}};
  r.bytes = bytes;
  r.unit = unit;
  r.group_size = unit != 0 ? 2 : 0;
  return r;
}

}  // namespace hvd::testing
