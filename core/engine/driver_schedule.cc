// Part of the driver that enters a schedule, runs its buckets, and leaves it.
#include <algorithm>

#include "agree/check_response.h"
#include "engine/driver.h"

namespace hvd {

void Driver::adopt(const Response& response) {
  auto schedule = std::make_shared<Schedule>();
  if (!decode(response.payload, schedule.get())) {
    fail(Status(Code::internal, "invalid schedule"), true);
    return;
  }
  if (!response.sizes.empty()) {
    Tuning tuning;
    if (Status s = Tuning::read(response.sizes, &tuning); !s.ok()) {
      fail(std::move(s), true);
      return;
    }
    connections_.set_tuning(tuning);
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
  // A rank takes part in all operations of its process sets. If this rank's request for one of them is unknown, use a request that matches
  // nothing: the rank then leaves the schedule instead of contributing zeros.
  static const Request kUnknown = [] {
    Request q;
    q.kind = Kind::adopt_schedule;
    return q;
  }();
  std::vector<const Request*> requests;
  for (const auto& entry : schedule->entries) {
    const Request* known = recent_.find(key_of(entry.set, entry.frontend, entry.name));
    requests.push_back(!connections_.comm(entry.set) ? nullptr : known ? known : &kUnknown);
  }
  // If rank 0's response for a bucket does not fit this rank's requests, use requests that match nothing. This rank then leaves the
  // schedule as soon as it submits one of them.
  for (const auto& bucket : schedule->buckets) {
    const Comm* comm = connections_.comm(bucket.set());
    if (!comm) continue;
    bool good = true;
    auto entry = bucket.entries.begin();
    for (const Response& part : bucket.parts) {
      std::vector<const Request*> own;
      for (size_t i = 0; i < part.names.size(); ++i) own.push_back(requests[*entry++]);
      good = good && check_response(part, own, comm->size, comm->rank).ok();
    }
    if (good) continue;
    for (uint32_t e : bucket.entries) requests[e] = &kUnknown;
  }
  ++epoch_;
  observers_->notify(&Observer::schedule_begun, *schedule);
  auto cursor = std::make_unique<ScheduleCursor>(schedule, std::move(requests));
  may_stage_.clear();
  for (const auto& bucket : schedule->buckets) may_stage_.push_back(bucket.parts.size() == 1 && Executor::may_stage(bucket.parts.front()));
  schedule_sync_ = std::make_unique<ScheduleSync>(schedule, std::move(members), &connections_, &control_);
  std::vector<OperationPtr> unanswered = std::move(to_request_);
  to_request_.clear();
  to_request_bytes_ = 0;
  for (auto& [key, op] : pending_) unanswered.push_back(std::move(op));
  pending_.clear();
  for (auto& [frontend, op] : joins_) unanswered.push_back(std::move(op));
  joins_.clear();
  submissions_->begin_schedule(std::move(cursor), unanswered);
  if (early_revoked_) {
    Revoked message = *early_revoked_;
    early_revoked_.reset();
    on(0, message);
  }
}

void Driver::retune(size_t fusion_threshold, const Tuning& tuning) {
  std::lock_guard lock(retuning_mutex_);
  retuning_ = Retuning{fusion_threshold, tuning};
  retuning_requested_.store(true, std::memory_order_seq_cst);
}

// Apply the settings of retune(), unless the ranks are adopting or leaving a schedule; a later turn then applies them. A schedule that is
// being adopted was built with the old settings, and one that is ending has no known last position yet.
void Driver::apply_retuning() {
  if (!coordinator_ || coordinator_->epoch() != epoch_ || (schedule_sync_ && schedule_sync_->frozen())) return;
  std::optional<Retuning> wanted;
  {
    std::lock_guard lock(retuning_mutex_);
    retuning_requested_.store(false, std::memory_order_seq_cst);
    wanted.swap(retuning_);
  }
  if (!wanted) return;
  coordinator_->retune(wanted->fusion_threshold, wanted->tuning.values(), schedule_sync_ != nullptr);
  if (schedule_sync_) schedule_sync_->revoke(false);
}

bool Driver::run_schedule() {
  bool moved = false;
  for (;;) {
    const Submissions::Progress p = submissions_->progress();
    stage_next(p);
    schedule_sync_->publish(p.ready);
    if ((p.deviated || schedule_sync_->leaving_elsewhere())) schedule_sync_->revoke(p.stuck);
    uint64_t final_position;
    if (schedule_sync_->final_position(&final_position)) {
      leave_schedule(final_position);
      return true;
    }
    if (schedule_sync_->guarded() && !schedule_sync_->may_run(p.executed)) {
      const Vote outcome = vote(p, &moved);
      if (outcome == Vote::ended) return true;
      if (outcome == Vote::idle) return moved;
      continue;
    }
    if (p.executed >= p.ready || p.ready == kNoPart || !schedule_sync_->may_run(p.executed)) return moved;
    if (!run_bucket()) return true;
    moved = true;
  }
}

// Stage this rank's data of the next bucket before publishing that this rank is ready for it. A rank that then sees that
// all ranks are ready finds their data staged, and need not wait a second time.
void Driver::stage_next(const Submissions::Progress& p) {
  if (staged_in_ || p.deviated || p.ready <= p.executed || p.ready == kNoPart || !may_stage_[p.executed % may_stage_.size()]) return;
  if (!schedule_sync_->shared() || !schedule_sync_->must_publish(p.ready)) return;
  const Response& response = submissions_->peek_bucket(&operations_)->parts.front();
  Comm* comm = connections_.comm(response.set);
  if (comm && executor_.stage_early(response, operations_)) staged_in_ = comm->node;
}

bool Driver::run_bucket() {
  // A departed rank takes no part in this bucket or any later one, so do not execute them even if they are ready.
  if (departure_complete()) {
    fail(shutdown_state_.why(), false);
    return false;
  }
  std::vector<Operation*> ops;
  // Owners of the operations. If the job ends inside the collective, their memory must live until the collective returns.
  std::vector<OperationPtr> keep;
  const Schedule::Bucket* bucket = submissions_->take_bucket(&ops, &keep);
  ++executed_;
  staged_in_ = nullptr;
  if (!connections_.comm(bucket->set())) return true;
  in_bucket_ = bucket;
  const Status status = carry_out(*bucket, ops, &keep);
  in_bucket_ = nullptr;
  if (status.ok()) {
    observers_->notify(&Observer::bucket_done, *bucket);
    // Device operations are still in flight and complete later.
    std::erase_if(ops, [](const Operation* op) { return op && op->on_device; });
    finish(ops, status);
    return true;
  }
  // Put the operations back into a queue, so that collective_failed() completes them together with all other unfinished operations.
  for (OperationPtr& op : keep) to_request_.push_back(std::move(op));
  collective_failed(status);
  return false;
}

// Execute the responses of a bucket, which together count as one operation.
Status Driver::carry_out(const Schedule::Bucket& bucket, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep) {
  const auto one = [&](const Response& part, const std::vector<Operation*>& of_it) {
    return part.device == DeviceKind::host ? carry_out(part, of_it) : launch(part, of_it, keep);
  };
  if (bucket.parts.size() == 1) return one(bucket.parts.front(), ops);
  auto next = ops.begin();
  for (const Response& part : bucket.parts) {
    const auto end = next + static_cast<ptrdiff_t>(part.names.size());
    HVD_RETURN_IF_ERROR(one(part, std::vector<Operation*>(next, end)));
    next = end;
  }
  return {};
}

void Driver::leave_schedule(uint64_t final_position) {
  while (!shutdown_state_.over() && submissions_->progress().ready != kNoPart && submissions_->progress().executed < final_position) {
    if (!run_bucket()) return;
  }
  if (submissions_->progress().ready == kNoPart) executed_ += final_position;
  // Withdraw the data of a bucket that does not run. No rank can start another collective of the group yet, because the coordinator ignores
  // requests of earlier epochs, and this rank sends its requests of the next epoch later.
  if (staged_in_) staged_in_->withdraw();
  staged_in_ = nullptr;
  const size_t buckets = std::max<size_t>(1, submissions_->buckets());
  to_request_ = submissions_->end_schedule();
  observers_->notify(&Observer::schedule_ended, schedule_sync_->schedule(), final_position);
  schedule_sync_.reset();
  ++epoch_;
  if (coordinator_) coordinator_->fall_back(final_position / buckets, now());
  send_up(control_, Settled{epoch_});
}

}  // namespace hvd
