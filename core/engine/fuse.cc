#include "engine/fuse.h"

namespace hvd {
namespace {

bool fusible(const Ready& a, const Ready& b, const FuseOptions& options) {
  const Response &x = a.response, &y = b.response;
  if (x.kind != Kind::allreduce || y.kind != Kind::allreduce || !x.error.ok() || !y.error.ok()) return false;
  if (options.groups_apart && (a.grouped || b.grouped) && a.unit != b.unit) return false;
  return a.fence == b.fence && x.set == y.set && x.face == y.face && x.dtype == y.dtype && x.op == y.op && x.wire == y.wire && x.prescale == y.prescale &&
         x.postscale == y.postscale;
}

void append(Response* to, Response&& from) {
  to->names.push_back(std::move(from.names.front()));
  to->shapes.push_back(std::move(from.shapes.front()));
}

}  // namespace

std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options, std::vector<std::vector<size_t>>* members) {
  std::vector<Response> out;
  std::vector<bool> taken(ready.size(), false);
  members->clear();
  for (size_t i = 0; i < ready.size(); ++i) {
    if (taken[i]) continue;
    size_t bytes = ready[i].bytes;
    Response response = std::move(ready[i].response);
    ready[i].response = response;  // fusible() still compares with it; cheap next to the wire
    std::vector<size_t> mine{i};
    for (size_t j = i + 1; j < ready.size(); ++j) {
      // Members of one group go together whatever their size; they were promised to complete together.
      const bool together = ready[j].grouped && ready[j].unit == ready[i].unit && ready[i].grouped;
      if (taken[j] || !fusible(ready[i], ready[j], options)) continue;
      if (!together && (options.threshold == 0 || bytes + ready[j].bytes > options.threshold)) continue;
      bytes += ready[j].bytes;
      taken[j] = true;
      mine.push_back(j);
      append(&response, std::move(ready[j].response));
    }
    out.push_back(std::move(response));
    members->push_back(std::move(mine));
  }
  return out;
}

std::vector<Response> fuse(std::vector<Ready> ready, const FuseOptions& options) {
  std::vector<std::vector<size_t>> members;
  return fuse(std::move(ready), options, &members);
}

}  // namespace hvd
