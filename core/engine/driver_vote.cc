// Part of the driver that votes in guarded schedules (engine/schedule_sync.h) and acts on the results.
#include "engine/driver.h"

namespace hvd {

// Vote on the execution of this rank's next bucket. Return idle if the vote is in progress, or if there is nothing to vote on.
Driver::Vote Driver::vote(const Submissions::Progress& p, bool* moved) {
  if (!readiness_vote_.under_way()) {
    const bool leave = schedule_sync_->frozen();
    if (!leave && p.ready <= p.executed) return Vote::idle;
    operations_.clear();
    if (!leave) submissions_->peek_bucket(&operations_);
    readiness_vote_.begin(schedule_sync_->schedule(), p.executed, leave ? p.executed : p.ready, operations_);
  }
  // Apply the timeout only after a rank has asked to leave the schedule, because all votes are then due. Without such a request, a program
  // can be arbitrarily late.
  if (const Status status = readiness_vote_.advance(schedule_sync_->frozen(), moved); !status.ok()) {
    // Count the failed operation, too: operations count as executed once they start.
    ++executed_;
    collective_failed(status);
    return Vote::ended;
  }
  if (readiness_vote_.under_way()) return Vote::idle;
  schedule_sync_->on_vote(readiness_vote_.position(), readiness_vote_.agreed());
  if (readiness_vote_.agreed() > readiness_vote_.position() && readiness_vote_.carries()) finish_guarded();
  *moved = true;
  return Vote::decided;
}

void Driver::finish_guarded() {
  std::vector<OperationPtr> keep;
  const Schedule::Bucket* bucket = submissions_->take_bucket(&operations_, &keep);
  ++executed_;
  readiness_vote_.deliver(bucket->parts.front(), operations_);
  observers_->notify(&Observer::bucket_done, *bucket);
  finish(operations_, {});
}

}  // namespace hvd
