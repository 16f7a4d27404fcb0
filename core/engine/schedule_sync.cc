#include "engine/schedule_sync.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "collectives/reduce.h"
#include "engine/protocol.h"

namespace hvd {

ScheduleSync::ScheduleSync(std::shared_ptr<const Schedule> schedule, std::vector<std::vector<int>> members, Connections* connections,
                           Control* control)
    : schedule_(std::move(schedule)), members_(std::move(members)), connections_(connections), control_(control),
      mode_(mode_for(*connections, *schedule_)) {}

// Choose the implementation of schedule synchronization. Every rank makes the same choice.
ScheduleSync::Mode ScheduleSync::mode_for(const Connections& connections, const Schedule& schedule) {
  if (connections.one_node()) return Mode::shared;
  const bool all_take_part = std::all_of(schedule.buckets.begin(), schedule.buckets.end(), [](const auto& b) { return b.set() == 0; });
  return connections.flat() && all_take_part ? Mode::guarded : Mode::coordinated;
}

ScheduleWord ScheduleSync::word(int local_rank) const {
  return {connections_->segment().set_line(0, local_rank).schedule.load(std::memory_order_seq_cst)};
}

// Publish this rank's position in the schedule in shared memory, and wake local ranks whose sleep state is `sleep_state` or higher.
void ScheduleSync::publish(bool frozen, SleepState sleep_state) {
  connections_->segment()
      .set_line(0, connections_->local_rank())
      .schedule.store(ScheduleWord::of(id(), position_, frozen).bits, std::memory_order_seq_cst);
  for (int l = 0; l < connections_->local_size(); ++l) {
    if (l != connections_->local_rank()) connections_->wakeup_of(l).wake(sleep_state);
  }
}

void ScheduleSync::publish(uint64_t position) {
  if (!must_publish(position)) return;
  published_ = true;
  position_ = position;
  if (mode_ == Mode::coordinated) {
    send_up(*control_, ReadyUpTo{schedule_->id, position});
    return;
  }
  publish(false, SleepState::waiting);
}

bool ScheduleSync::may_run(uint64_t position) const {
  if (mode_ != Mode::shared) return position < go_;
  for (int rank : members_[position % members_.size()]) {
    if (rank == connections_->rank()) continue;
    // If all ranks are on one node, local ranks equal global ranks.
    if (!word(rank).ready(id(), position)) return false;
  }
  return position < position_;
}

void ScheduleSync::revoke(bool stuck) {
  if (frozen_) return;
  frozen_ = true;
  frozen_since_ = Clock::now();
  if (reported_) return;
  if (mode_ != Mode::shared) {
    send_up(*control_, Revoke{schedule_->id, stuck});
    return;
  }
  publish(true, SleepState::idle);
}

bool ScheduleSync::leaving_elsewhere() const {
  if (frozen_ || mode_ != Mode::shared) return reported_ && !frozen_;
  for (int l = 0; l < connections_->local_size(); ++l) {
    if (word(l).frozen(id())) return true;
  }
  return false;
}

std::vector<int> ScheduleSync::silent() const {
  std::vector<int> ranks;
  if (mode_ != Mode::shared || !frozen_) return ranks;
  for (int l = 0; l < connections_->local_size(); ++l) {
    // If all ranks are on one node, local ranks equal global ranks.
    if (!word(l).frozen(id())) ranks.push_back(l);
  }
  return ranks;
}

std::string ScheduleSync::waits_for() const {
  std::string ranks;
  for (int rank : silent()) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return ranks.empty() ? "" : "They wait for an answer from the engine of rank " + ranks + "; check whether that process is stopped.";
}

void ScheduleSync::on_revoked(uint64_t position) {
  if (guarded()) {
    reported_ = true;
  } else {
    final_ = static_cast<int64_t>(position);
  }
}

void ScheduleSync::on_vote(uint64_t position, uint64_t agreed) {
  if (agreed > position) {
    go_ = agreed;
  } else {
    final_ = static_cast<int64_t>(position);
  }
}

bool ScheduleSync::final_position(uint64_t* position) const {
  if (mode_ != Mode::shared) {
    if (final_ < 0) return false;
    *position = static_cast<uint64_t>(final_);
    return true;
  }
  if (!frozen_) return false;
  std::vector<ScheduleWord> words(connections_->local_size());
  for (int l = 0; l < connections_->local_size(); ++l) {
    words[l] = word(l);
    if (!words[l].frozen(id())) return false;
  }
  *position = last_position(words, members_);
  return true;
}

void ReadinessVote::begin(const Schedule& schedule, uint64_t position, uint64_t ready, const std::vector<Operation*>& operations) {
  Comm& comm = *connections_->comm(0);
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

Status ReadinessVote::advance(bool hurry, bool* moved) {
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

double ReadinessVote::patience_left() const {
  if (!hurry_) return kForever;
  return std::max(0.0, timeout_ - std::chrono::duration<double>(Clock::now() - since_).count());
}

}  // namespace hvd
