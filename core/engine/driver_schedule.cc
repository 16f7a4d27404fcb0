// The driver's part in schedules: adopting one, running its buckets, leaving it.
#include <algorithm>

#include "agree/check_response.h"
#include "base/wire.h"
#include "engine/driver.h"

namespace hvd {

void Driver::remember(const Operation& op) {
  if (settings_.cache_capacity == 0) return;
  std::string key = key_of(op.request);
  recent_.insert_or_assign(key, op.request);
  recent_stamp_[key] = ++stamps_;
  recent_order_.emplace_back(stamps_, std::move(key));
  // Twice the longest period, counting repetitions: what the next schedule can hold is never forgotten.
  if (recent_order_.size() > 2 * settings_.cache_capacity + 2) {
    const auto& [stamp, oldest] = recent_order_.front();
    if (recent_stamp_[oldest] == stamp) {
      recent_.erase(oldest);
      recent_stamp_.erase(oldest);
    }
    recent_order_.pop_front();
  }
}

void Driver::adopt(const Response& response) {
  auto schedule = std::make_shared<Schedule>();
  if (!decode(response.payload, schedule.get())) {
    fail(Status(Code::internal, "unintelligible schedule"), true);
    return;
  }
  const auto sets = submissions_->sets();
  std::vector<std::vector<int>> members;
  for (const auto& bucket : schedule->buckets) {
    const auto set = sets.find(bucket.set());
    if (set == sets.end()) {
      fail(Status(Code::internal, "a schedule for process set " + std::to_string(bucket.set()) + ", which does not exist"), true);
      return;
    }
    members.push_back(set->second);
  }
  // A rank takes part in everything of its sets. If it does not know its own request any more, it expects one that nothing matches and
  // thereby leaves the schedule, instead of contributing zeros to it.
  static const Request kUnknown = [] {
    Request q;
    q.kind = Kind::adopt_schedule;
    return q;
  }();
  std::vector<const Request*> requests;
  for (const auto& entry : schedule->entries) {
    auto it = recent_.find(key_of(entry.set, entry.face, entry.name));
    requests.push_back(!world_.comm(entry.set) ? nullptr : it == recent_.end() ? &kUnknown : &it->second);
  }
  // Likewise where the schedule says anything else about this rank's memory.
  for (const auto& bucket : schedule->buckets) {
    const Comm* comm = world_.comm(bucket.set());
    if (!comm) continue;
    bool good = true;
    auto entry = bucket.entries.begin();
    for (const Response& part : bucket.parts) {
      std::vector<const Request*> mine;
      for (size_t i = 0; i < part.names.size(); ++i) mine.push_back(requests[*entry++]);
      good = good && check_response(part, mine, comm->size, comm->rank).ok();
    }
    if (good) continue;
    for (uint32_t e : bucket.entries) requests[e] = &kUnknown;
  }
  ++epoch_;
  counters_.schedules += 1;
  auto cursor = std::make_unique<ScheduleCursor>(schedule, std::move(requests));
  steady_ = std::make_unique<Steady>(schedule, std::move(members), &world_, &control_);
  std::vector<OperationPtr> unanswered = std::move(to_announce_);
  to_announce_.clear();
  to_announce_bytes_ = 0;
  for (auto& [key, op] : pending_) unanswered.push_back(std::move(op));
  pending_.clear();
  for (auto& [face, op] : joins_) unanswered.push_back(std::move(op));
  joins_.clear();
  submissions_->begin_schedule(std::move(cursor), unanswered);
  if (early_revoked_) {
    Frame frame = std::move(*early_revoked_);
    early_revoked_.reset();
    on_frame(frame);
  }
}

bool Driver::run_schedule() {
  bool moved = false;
  for (;;) {
    const Submissions::Progress p = submissions_->progress();
    steady_->publish(p.ready);
    if ((p.deviated || steady_->leaving_elsewhere())) steady_->revoke(p.stuck);
    uint64_t final_position;
    if (steady_->final_position(&final_position)) {
      leave_schedule(final_position);
      return true;
    }
    if (steady_->guarded() && !steady_->may_run(p.executed)) {
      const Vote outcome = vote(p, &moved);
      if (outcome == Vote::ended) return true;
      if (outcome == Vote::idle) return moved;
      continue;
    }
    if (p.executed >= p.ready || p.ready == kNoPart || !steady_->may_run(p.executed)) return moved;
    if (!run_bucket()) return true;
    moved = true;
  }
}

bool Driver::run_bucket() {
  // Ready or not, the one who has left takes no part in it.
  if (past_goodbye()) {
    fail(bye_->why, false);
    return false;
  }
  std::vector<Operation*> ops;
  // Held here while they run: the end of the job, heard from within the collective, must not hand their memory back before it returns.
  std::vector<OperationPtr> keep;
  const Schedule::Bucket* bucket = submissions_->take_bucket(&ops, &keep);
  ++executed_;
  if (!world_.comm(bucket->set())) return true;
  in_bucket_ = bucket;
  const Status status = carry_out(*bucket, ops);
  in_bucket_ = nullptr;
  if (status.ok()) {
    counters_.scheduled += 1;
    finish(ops, status);
    return true;
  }
  for (OperationPtr& op : keep) to_announce_.push_back(std::move(op));  // failed with the rest
  collective_failed(status);
  return false;
}

// Its operations complete together, so its parts count as one.
Status Driver::carry_out(const Schedule::Bucket& bucket, const std::vector<Operation*>& ops) {
  if (bucket.parts.size() == 1) return carry_out(bucket.parts.front(), ops);
  auto next = ops.begin();
  for (const Response& part : bucket.parts) {
    const auto end = next + static_cast<ptrdiff_t>(part.names.size());
    HVD_RETURN_IF_ERROR(carry_out(part, std::vector<Operation*>(next, end)));
    next = end;
  }
  return {};
}

void Driver::leave_schedule(uint64_t final_position) {
  while (!over_ && submissions_->progress().ready != kNoPart && submissions_->progress().executed < final_position) {
    if (!run_bucket()) return;
  }
  if (submissions_->progress().ready == kNoPart) executed_ += final_position;
  const size_t buckets = std::max<size_t>(1, submissions_->buckets());
  to_announce_ = submissions_->end_schedule();
  steady_.reset();
  ++epoch_;
  counters_.revocations += 1;
  std::string payload;
  Writer(&payload).put(epoch_);
  if (coordinator_) coordinator_->fall_back(final_position / buckets, now());
  control_.send_up(FrameType::settled, payload);
}

}  // namespace hvd
