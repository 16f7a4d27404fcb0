#include "engine/guard.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "collectives/reduce.h"

namespace hvd {

void Guard::begin(const Schedule& schedule, uint64_t position, uint64_t ready, const std::vector<Operation*>& operations) {
  Comm& comm = *world_->comm(0);
  const Schedule::Bucket& bucket = schedule.buckets[position % schedule.buckets.size()];
  const Response& r = bucket.parts.front();
  const size_t count = executor_->staged_count(r);
  const bool plain = r.kind == Kind::allreduce && r.wire == WireFormat::none && r.device == DeviceKind::host && r.op != ReduceOp::adasum &&
                     !sums_exactly(r);
  carries_ = bucket.parts.size() == 1 && (r.kind == Kind::barrier || (plain && backend_->may_be_guarded(comm, count, r.dtype)));
  hurry_ = false;
  const size_t carried = carries_ ? count : 0;
  const DType acc = accumulator(r.dtype);
  values_ = vote_.begin(comm, schedule.id, position, ready, carried, acc, backend_op(r.op));
  if (carried == 0) return;
  if (ready > position) {
    executor_->stage(r, operations, values_);
  } else {
    std::memset(values_, 0, carried * size_of(acc));
  }
}

Status Guard::advance(bool hurry, bool* moved) {
  bool progress = false;
  HVD_RETURN_IF_ERROR(vote_.advance(&progress));
  *moved = *moved || progress;
  if (!hurry || !under_way()) return {};
  if (progress || !hurry_) {
    hurry_ = true;
    since_ = Clock::now();
  } else if (patience_left() <= 0) {
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%g", timeout_);
    return Status(Code::timeout, "no progress for " + std::string(seconds) + " s while waiting for " + vote_.waits_for());
  }
  return {};
}

double Guard::patience_left() const {
  if (!hurry_) return kForever;
  return std::max(0.0, timeout_ - std::chrono::duration<double>(Clock::now() - since_).count());
}

}  // namespace hvd
