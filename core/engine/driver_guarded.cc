// Driver: guarded schedules (engine/guard.h): when to vote, and what follows.
#include "engine/driver.h"

namespace hvd {

// Vote on this rank's next bucket, which is not agreed on yet. idle: nothing to vote on, or a peer's vote is missing.
Driver::Vote Driver::vote(const Submissions::Progress& p, bool* moved) {
  if (!guard_.under_way()) {
    const bool leave = steady_->frozen();
    if (!leave && p.ready <= p.executed) return Vote::idle;
    std::vector<Operation*> ops;
    if (!leave) submissions_->peek_bucket(&ops);
    guard_.begin(steady_->schedule(), p.executed, leave ? p.executed : p.ready, ops);
  }
  // Once any rank asked to leave, all votes should arrive soon, so the timeout applies; otherwise ranks may be
  // arbitrarily late.
  if (const Status status = guard_.advance(steady_->frozen(), moved); !status.ok()) {
    ++executed_;  // count the operation as started
    collective_failed(status);
    return Vote::ended;
  }
  if (guard_.under_way()) return Vote::idle;
  steady_->on_vote(guard_.position(), guard_.agreed());
  if (guard_.agreed() > guard_.position() && guard_.carries()) finish_guarded();
  *moved = true;
  return Vote::decided;
}

void Driver::finish_guarded() {
  std::vector<Operation*> ops;
  std::vector<OperationPtr> keep;
  const Schedule::Bucket* bucket = submissions_->take_bucket(&ops, &keep);
  ++executed_;
  guard_.deliver(bucket->parts.front(), ops);
  observers_->tell(&Observer::bucket_done, *bucket);
  finish(ops, {});
}

}  // namespace hvd
