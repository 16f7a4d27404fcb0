#include "agree/fuse.h"

#include <map>

namespace hvd {
namespace {

// True if the two operations can be fused into one response.
bool alike(const Response& x, const Response& y) {
  return x.kind == y.kind && joinable(x.kind) && x.error.ok() && y.error.ok() && x.set == y.set && x.frontend == y.frontend &&
         x.dtype == y.dtype && x.op == y.op && x.wire == y.wire && x.device == y.device && x.across_hosts == y.across_hosts &&
         x.partial == y.partial && x.prescale == y.prescale && x.postscale == y.postscale;
}

// Operations that must stay in one response: a single operation, or the operations of a group that agree in kind, dtype and so on.
struct FusionUnit {
  std::vector<size_t> members;
  size_t bytes = 0;
  // True if these operations must not be fused with others.
  bool apart = false;
};

std::vector<FusionUnit> fusion_units(const std::vector<Ready>& ready, const FuseOptions& options) {
  std::vector<FusionUnit> units;
  // Units of each group, as indices in `units`. The key is the group's number (Ready::unit).
  std::map<uint64_t, std::vector<size_t>> of_group;
  for (size_t i = 0; i < ready.size(); ++i) {
    const Ready& r = ready[i];
    FusionUnit* unit = nullptr;
    if (r.grouped()) {
      for (size_t l : of_group[r.unit]) {
        if (alike(ready[units[l].members.front()].response, r.response)) unit = &units[l];
      }
    }
    if (!unit) {
      if (r.grouped()) of_group[r.unit].push_back(units.size());
      unit = &units.emplace_back();
      unit->apart = r.grouped() && options.groups_apart;
    }
    unit->members.push_back(i);
    unit->bytes += r.bytes;
  }
  for (const auto& [unit, parts] : of_group) {
    for (size_t l : parts) units[l].apart |= parts.size() > 1;
  }
  return units;
}

void append(Response* to, Response&& from) {
  to->names.push_back(std::move(from.names.front()));
  to->shapes.push_back(std::move(from.shapes.front()));
  to->sizes.insert(to->sizes.end(), from.sizes.begin(), from.sizes.end());
}

}  // namespace

std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options, std::vector<std::vector<size_t>>* members) {
  std::vector<Response> out;
  members->clear();
  std::vector<FusionUnit> units = fusion_units(ready, options);
  std::vector<bool> taken(units.size(), false);
  for (size_t i = 0; i < units.size(); ++i) {
    if (taken[i]) continue;
    FusionUnit& into = units[i];
    const Ready first = ready[into.members.front()];
    for (size_t j = i + 1; j < units.size() && !into.apart; ++j) {
      const Ready& other = ready[units[j].members.front()];
      if (taken[j] || units[j].apart || first.fence != other.fence || !alike(first.response, other.response)) continue;
      if (options.threshold == 0 || into.bytes + units[j].bytes > options.threshold) continue;
      taken[j] = true;
      into.bytes += units[j].bytes;
      into.members.insert(into.members.end(), units[j].members.begin(), units[j].members.end());
    }
    Response& response = out.emplace_back(first.response);
    for (size_t k = 1; k < into.members.size(); ++k) append(&response, std::move(ready[into.members[k]].response));
    members->push_back(std::move(into.members));
  }
  return out;
}

std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options) {
  std::vector<std::vector<size_t>> members;
  return fuse(std::move(ready), options, &members);
}

}  // namespace hvd
