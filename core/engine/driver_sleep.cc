// Driver: before sleeping, decide which events must wake it, how long it may sleep, and whether there is work after
// all.
#include <algorithm>

#include "engine/driver.h"

namespace hvd {

Mood Driver::resting_mood() const {
  if (!steady_) return Mood::idle;
  if (awaits_peers()) return Mood::waiting;
  const auto p = submissions_->progress();
  return (p.ready > p.executed && p.ready != kNoPart) || p.deviated ? Mood::waiting : Mood::idle;
}

double Driver::resting_seconds() const {
  // Local NCCL or GPU errors raise no wakeup, so poll for them.
  double seconds = resting_seconds_of_the_host();
  if (by_nccl_.in_flight()) seconds = std::min(seconds, ByNccl::resting_seconds());
  if (by_hosts_.in_flight()) seconds = std::min(seconds, Launched::resting_seconds());
  if (by_ipc_.in_flight()) seconds = std::min(seconds, ByIpc::resting_seconds());
  return seconds;
}

double Driver::resting_seconds_of_the_host() const {
  if (!staged_.idle()) return staged_.resting_seconds();
  if (!by_hosts_.idle()) return by_hosts_.resting_seconds();
  if (!to_announce_.empty()) return 50e-6;
  if (coordinator_ && coordinator_->negotiator().has_pending()) return 1.0;
  const double patience = awaits_peers() ? std::min(guard_.patience_left(), world_.between_looks()) : kForever;
  return anything_waits() ? std::min(Watch::kLook, patience) : patience;
}

void Driver::poll_fds(std::vector<std::pair<int, short>>& fds) const {
  control_.poll_fds(fds);
  if (awaits_peers()) guard_.poll_fds(fds);
}

bool Driver::work_waiting() const {
  if (control_.work_in_memory()) return true;
  if (farewell_.over()) return false;
  if (!launched_.empty()) return true;
  if (stopping_.load() || notes_->any() || surrender_->demanded()) return true;
  // Received while a caller drove a collective, and not handled yet.
  if (!control_.inbox_empty() || past_goodbye()) return true;
  if (!steady_) return !submissions_->empty() || !order_.empty();
  const auto p = submissions_->progress();
  if (steady_->leaving_elsewhere()) return true;
  uint64_t final_position;
  if (steady_->final_position(&final_position)) return true;
  if (steady_->must_publish(p.ready) || (p.deviated && !steady_->frozen())) return true;
  if (steady_->guarded() && !guard_.under_way() && (steady_->frozen() || p.ready > p.executed)) return true;
  return p.executed < p.ready && p.ready != kNoPart && steady_->may_run(p.executed);
}

}  // namespace hvd
