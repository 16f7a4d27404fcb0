// Part of the driver that prepares a sleep of the thread: it decides which events must wake the thread, how long it can
// sleep, and whether there is work to do instead.
#include <algorithm>

#include "engine/driver.h"

namespace hvd {

SleepState Driver::resting_sleep_state() const {
  if (!schedule_sync_) return SleepState::idle;
  if (awaits_peers()) return SleepState::waiting;
  const auto p = submissions_->progress();
  return (p.ready > p.executed && p.ready != kNoPart) || p.deviated ? SleepState::waiting : SleepState::idle;
}

double Driver::resting_seconds() const {
  // Local NCCL and GPU errors trigger no wakeup, so they must be polled.
  double seconds = resting_seconds_of_the_host();
  if (nccl_path_.in_flight()) seconds = std::min(seconds, NcclPath::resting_seconds());
  if (hierarchical_path_.in_flight()) seconds = std::min(seconds, LaunchedOperations::resting_seconds());
  if (ipc_path_.in_flight()) seconds = std::min(seconds, IpcPath::resting_seconds());
  return seconds;
}

double Driver::resting_seconds_of_the_host() const {
  if (!host_staged_path_.idle()) return host_staged_path_.resting_seconds();
  if (!hierarchical_path_.idle()) return hierarchical_path_.resting_seconds();
  if (!to_request_.empty()) return 50e-6;
  if (coordinator_ && coordinator_->negotiator().has_pending()) return 1.0;
  const double patience = awaits_peers() ? std::min(readiness_vote_.patience_left(), connections_.between_looks()) : kForever;
  return anything_waits() ? std::min(LocalStallCheck::kLook, patience) : patience;
}

void Driver::poll_fds(std::vector<std::pair<int, short>>& fds) const {
  control_.poll_fds(fds);
  if (awaits_peers()) readiness_vote_.poll_fds(fds);
}

bool Driver::work_waiting() const {
  if (control_.work_in_memory()) return true;
  if (shutdown_state_.over()) return false;
  if (!launched_.empty()) return true;
  if (stopping_.load() || message_bus_->any() || abort_request_->requested()) return true;
  // Handle messages that arrived while a caller was running a collective.
  if (!control_.inbox_empty() || departure_complete()) return true;
  if (!schedule_sync_) return !submissions_->empty() || !order_.empty();
  const auto p = submissions_->progress();
  if (schedule_sync_->leaving_elsewhere()) return true;
  uint64_t final_position;
  if (schedule_sync_->final_position(&final_position)) return true;
  if (schedule_sync_->must_publish(p.ready) || (p.deviated && !schedule_sync_->frozen())) return true;
  if (schedule_sync_->guarded() && !readiness_vote_.under_way() && (schedule_sync_->frozen() || p.ready > p.executed)) return true;
  return p.executed < p.ready && p.ready != kNoPart && schedule_sync_->may_run(p.executed);
}

}  // namespace hvd
