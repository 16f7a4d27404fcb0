// The driver's part in guarded schedules (engine/guard.h): when to vote, and what follows.
#include "engine/driver.h"

namespace hvd {

// The bucket that is next here has not been agreed on. idle: nothing to vote on, or a peer's vote is missing.
Driver::Vote Driver::vote(const Submissions::Progress& p, bool* moved) {
  if (!guard_.under_way()) {
    const bool leave = steady_->frozen();
    if (!leave && p.ready <= p.executed) return Vote::idle;
    std::vector<Operation*> ops;
    if (!leave) submissions_->peek_bucket(&ops);
    guard_.begin(steady_->schedule(), p.executed, leave ? p.executed : p.ready, ops);
  }
  // Who asked to leave, or was told that somebody did, may expect everybody's vote soon; others are late for as long as they like.
  if (const Status status = guard_.advance(steady_->frozen(), moved); !status.ok()) {
    ++executed_;  // as if the operation had begun
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
