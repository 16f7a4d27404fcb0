#include "agree/validate.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>

namespace hvd {
namespace {

std::string number(double v) {
  char text[40];
  snprintf(text, sizeof text, "%.17g", v);
  return text;
}

struct Disagreement {
  std::string what, left, right;
};

// Return the first mismatch between two requests that must agree. If they agree, `what` is empty.
Disagreement compare(const Request& a, const Request& b) {
  if (a.kind != b.kind) return {"operation", name_of(a.kind), name_of(b.kind)};
  if (a.device != b.device) return {"device of the tensor", std::string(name_of(a.device)), std::string(name_of(b.device))};
  if (a.dtype != b.dtype) return {"dtype", std::string(name_of(a.dtype)), std::string(name_of(b.dtype))};
  if (a.kind == Kind::add_set && a.splits != b.splits) return {"ranks of the process set", shape_string(a.splits), shape_string(b.splits)};
  if (a.kind == Kind::remove_set && a.splits != b.splits) return {"process set", shape_string(a.splits), shape_string(b.splits)};
  if (a.kind == Kind::broadcast && a.root != b.root) return {"root rank", std::to_string(a.root), std::to_string(b.root)};
  if (a.kind == Kind::allreduce || a.kind == Kind::reducescatter) {
    if (a.op != b.op) return {"reduction op", std::string(name_of(a.op)), std::string(name_of(b.op))};
    if (a.wire != b.wire) return {"wire format", std::string(name_of(a.wire)), std::string(name_of(b.wire))};
    if (a.across_hosts != b.across_hosts)
      return {"reduction between hosts", a.across_hosts ? "in parts" : "whole", b.across_hosts ? "in parts" : "whole"};
    if (a.prescale != b.prescale) return {"prescale factor", number(a.prescale), number(b.prescale)};
    if (a.postscale != b.postscale) return {"postscale factor", number(a.postscale), number(b.postscale)};
  }
  if (a.group_size != b.group_size) return {"size of the group", std::to_string(a.group_size), std::to_string(b.group_size)};
  const size_t first = ragged(a.kind) ? 1 : 0;
  const bool same = a.shape.size() == b.shape.size() && std::equal(a.shape.begin() + std::min(first, a.shape.size()), a.shape.end(),
                                                                   b.shape.begin() + std::min(first, b.shape.size()));
  if (!same) return {ragged(a.kind) ? "shape beyond the first dimension" : "shape", shape_string(a.shape), shape_string(b.shape)};
  return {};
}

}  // namespace

Status validate(const std::vector<RankRequest>& requested, const std::vector<std::string>& labels) {
  const RankRequest& first = requested.front();
  for (const RankRequest& other : requested) {
    // Report this error during negotiation instead of at submission. If one rank failed at submission, the others would
    // wait for it.
    if (ragged(other.request.kind) && other.request.shape.empty()) {
      return Status(Code::mismatch, std::string(name_of(other.request.kind)) + " '" + other.request.name + "': the tensor of " +
                                        labels[other.rank] + " must have at least one dimension, got shape ()");
    }
  }
  for (const RankRequest& other : requested) {
    const Disagreement d = compare(first.request, other.request);
    if (d.what.empty()) continue;
    std::string message = std::string(name_of(first.request.kind)) + " '" + first.request.name + "': ranks disagree about the " + d.what +
                          ": " + d.left + " on " + labels[first.rank] + ", " + d.right + " on " + labels[other.rank];
    return Status(Code::mismatch, std::move(message));
  }
  return {};
}

Status check_arguments(const Request& q, const std::vector<int>& members) {
  auto refuse = [&](const std::string& why) {
    return Status(Code::invalid_argument, std::string(name_of(q.kind)) + (q.name.empty() ? "" : " '" + q.name + "'") + ": " + why);
  };
  const int n = static_cast<int>(members.size());
  const bool reduces = q.kind == Kind::allreduce || q.kind == Kind::reducescatter;
  if (q.kind == Kind::reducescatter && q.op != ReduceOp::average && q.op != ReduceOp::sum) {
    return refuse("op must be Average or Sum, got " + std::string(name_of(q.op)));
  }
  if (q.kind == Kind::allreduce && q.op == ReduceOp::adasum) {
    if (!is_float(q.dtype)) {
      return refuse("dtype must be float16, bfloat16, float32 or float64 for op Adasum, got " + std::string(name_of(q.dtype)));
    }
    if (!std::has_single_bit(static_cast<unsigned>(n))) {
      return refuse("the number of ranks must be a power of two for op Adasum, got " + std::to_string(n));
    }
  }
  if (q.wire != WireFormat::none) {
    const std::string wire(name_of(q.wire));
    if (q.kind != Kind::allreduce) return refuse("wire format must be none, got " + wire + "; only allreduce compresses data");
    if (q.dtype != DType::float32)
      return refuse("dtype must be float32 for wire format " + wire + ", got " + std::string(name_of(q.dtype)));
    if (q.op != ReduceOp::sum && q.op != ReduceOp::average) {
      return refuse("op must be Average or Sum for wire format " + wire + ", got " + std::string(name_of(q.op)));
    }
  }
  if (reduces && q.dtype == DType::boolean) {
    if (q.op == ReduceOp::average) return refuse("op must be Sum, Min, Max or Product for dtype bool, got Average");
    if (q.prescale != 1.0 || q.postscale != 1.0) {
      return refuse("prescale and postscale factors must be 1 for dtype bool, got " + number(q.prescale) + " and " + number(q.postscale));
    }
  }
  if (q.kind == Kind::reducescatter && q.shape.empty()) return refuse("the tensor must have at least one dimension, got shape ()");
  if (q.kind == Kind::broadcast && std::find(members.begin(), members.end(), q.root) == members.end()) {
    return refuse("root rank must be one of the process set's ranks " + shape_string({members.begin(), members.end()}) + ", got " +
                  std::to_string(q.root));
  }
  if (q.kind == Kind::add_set) {
    bool good = !q.splits.empty() && q.splits.front() >= 0 && q.splits.back() < n;
    for (size_t i = 1; i < q.splits.size(); ++i) good = good && q.splits[i - 1] < q.splits[i];
    if (!good)
      return refuse("ranks must be one or more of 0 to " + std::to_string(n - 1) + ", ascending, none twice, got " +
                    shape_string(q.splits));
  }
  if (q.kind == Kind::remove_set && (q.splits.size() != 1 || q.splits[0] < 0 || q.splits[0] > UINT32_MAX)) {
    return refuse("id must be the id of one process set, got " + shape_string(q.splits));
  }
  if (q.kind == Kind::alltoall && !q.shape.empty()) {
    const int64_t rows = q.shape[0];
    if (static_cast<int>(q.splits.size()) != n) {
      return refuse("splits must have one entry for each of the " + std::to_string(n) + " ranks, got " + std::to_string(q.splits.size()));
    }
    int64_t sum = 0;
    for (int64_t s : q.splits) {
      if (s < 0) return refuse("splits must be 0 or more, got " + shape_string(q.splits));
      sum += s;
    }
    if (sum > rows) {
      return refuse("splits must add up to at most the " + std::to_string(rows) + " rows of the tensor, got " + shape_string(q.splits) +
                    ", together " + std::to_string(sum));
    }
  }
  return {};
}

}  // namespace hvd
