// Part of the driver that ends the job when a rank leaves or is lost, or a collective fails. It notifies the ranks and
// completes the operations in flight.
#include <algorithm>

#include "engine/driver.h"

namespace hvd {
namespace {

std::string describe(const Operation& op) {
  const std::string name = op.request.unnamed ? "unnamed, " + shape_string(op.request.shape) : op.request.name;
  return std::string(name_of(op.request.kind)) + " '" + name + "'";
}

// Return false if an abort message blames a rank that does not exist. -1 (no rank) is valid.
bool names_a_rank(const Message& message, int size) {
  const Abort* abort = std::get_if<Abort>(&message);
  return !abort || (abort->why.rank() >= -1 && abort->why.rank() < size);
}

}  // namespace

// True if a request of this rank has no response, or if this rank has asked to leave a schedule that has not ended yet.
bool Driver::anything_waits() const { return !pending_.empty() || !joins_.empty() || (schedule_sync_ && schedule_sync_->frozen()); }

void Driver::watch() {
  if (!anything_waits()) return;
  const double present = now();
  if (!local_stall_check_.due(present)) return;
  const auto age = [this](Clock::time_point t) { return std::chrono::duration<double>(t - start_).count(); };
  std::vector<LocalStallCheck::Waiting> waiting;
  for (const auto& [key, op] : pending_) waiting.push_back({key, describe(*op), age(op->requested)});
  // A join waits while other ranks execute operations, so count its waiting time from the last executed operation.
  for (const auto& [frontend, op] : joins_)
    waiting.push_back({key_of(0, frontend, kJoinName), "join", std::max(age(op->requested), last_executed_)});
  std::string why;
  if (const OperationPtr op = schedule_sync_ && schedule_sync_->frozen() ? submissions_->oldest_unannounced() : nullptr) {
    waiting.push_back({"", describe(*op), age(schedule_sync_->frozen_since())});
    why = schedule_sync_->waits_for();
  }
  const LogSink tell = [this](LogLevel level, const std::string& text) {
    observers_->notify(&Observer::unnoticed, text, schedule_sync_ ? schedule_sync_->silent() : std::vector<int>());
    if (log_) log_(level, text);
  };
  if (Status s = local_stall_check_.check(waiting, why, present, tell); !s.ok()) fail(with_report(s), true);
}

Status Driver::with_report(const Status& end) const {
  const std::string where = message_bus_->report();
  if (where.empty()) return end;
  return Status(end.code(), end.message() + "\n  What the ranks were doing is in " + where, end.rank());
}

Status Driver::hook() {
  control_.probe();
  control_.pump();
  hear_urgent();
  if (shutdown_state_.over()) return submissions_->ended();
  if (stopping_.load(std::memory_order_seq_cst)) return Status(Code::shutdown, label(rank_) + " has called shutdown");
  // A departed rank still takes part in all operations up to the number in its goodbye. Later operations fail.
  if (shutdown_state_.excludes(executed_)) return shutdown_state_.why();
  return connections_.look_for_silence();
}

void Driver::hear_urgent() {
  Frame frame;
  while (control_.pop_urgent(&frame)) {
    const int from = frame.origin;
    shutdown_state_.parted(from);
    if (shutdown_state_.over()) continue;
    const bool known = from >= 0 && from < connections_.size();
    std::optional<Message> message = message_in(frame);
    if (!known || !message || !names_a_rank(*message, connections_.size())) {
      Status why(frame.type == FrameType::bye ? Code::shutdown : Code::internal,
                 "invalid goodbye from " + (known ? label(from) : "rank " + std::to_string(from)));
      if (frame.type == FrameType::bye) {
        message = Goodbye{0, std::move(why)};
      } else {
        message = Abort{0, std::move(why)};
      }
    }
    std::visit([&](auto& m) { return on(from, m); }, *message);
  }
  for (const auto& gone : control_.take_lost()) {
    if (!shutdown_state_.over() && !shutdown_state_.has_parted(gone.rank)) lost(gone.rank, gone.why);
  }
  check_abort_request();
}

bool Driver::has_no_part() const { return schedule_sync_ && submissions_->progress().ready == kNoPart; }

// False if some rank has left the job without taking part in all operations that this rank has launched.
bool Driver::all_take_part() const { return !shutdown_state_.excludes(executed_); }

bool Driver::departure_complete() const {
  return shutdown_state_.leaving() && shutdown_state_.departure_complete(executed_, has_no_part());
}

void Driver::collective_failed(const Status& status) {
  // A closed data link is only a symptom. The control plane will report which rank is gone, and why: wait for it, up to 0.5 s on an
  // overloaded machine.
  const Deadline patience = Deadline::after(0.5);
  while (status.code() == Code::peer_lost && !shutdown_state_.over() && !shutdown_state_.excludes(executed_) && !patience.passed()) {
    connections_.waiter().nap(Deadline::after(0.005));
    control_.probe();
    control_.pump();
    hear_urgent();
  }
  if (!shutdown_state_.over() && stopping_.load(std::memory_order_seq_cst)) {
    // Do not count the failed operation, because this rank's goodbye announces the number of executed operations.
    --executed_;
    fail(status, false);
  } else if (!shutdown_state_.over() && shutdown_state_.excludes(executed_)) {
    // The other ranks get the goodbye from the departed rank itself, so do not notify them.
    fail(shutdown_state_.why(), false);
  } else {
    fail(status, true);
  }
}

std::vector<OperationPtr> Driver::take_unfinished() {
  std::vector<OperationPtr> ops = host_staged_path_.take_all();
  for (OperationPtr& op : hierarchical_path_.take_all()) ops.push_back(std::move(op));
  for (auto* some : {&launched_, &unlaunched_}) {
    for (HostStagedPath::Done& of_one : *some) ops.insert(ops.end(), of_one.operations.begin(), of_one.operations.end());
    some->clear();
  }
  for (auto& [key, op] : pending_) ops.push_back(std::move(op));
  for (OperationPtr& op : to_request_) ops.push_back(std::move(op));
  for (auto& [frontend, op] : joins_) ops.push_back(std::move(op));
  pending_.clear();
  joins_.clear();
  to_request_.clear();
  return ops;
}

void Driver::end_devices(const Status& why) {
  const bool take_part = all_take_part(), well = why.code() == Code::shutdown && take_part;
  nccl_path_.end(why, take_part);
  hierarchical_path_.end(well ? Status() : why);
  ipc_path_.end(why, well);
}

void Driver::lost(int rank, const Status& why) { fail(Status(Code::peer_lost, label(rank) + " was lost: " + why.message(), rank), true); }

// End the job on request from outside the engine. Messages of other ranks are handled first, because their errors are more specific.
void Driver::check_abort_request() {
  if (abort_request_->requested() && !shutdown_state_.over()) fail(abort_request_->why(), true);
}

void Driver::fail(Status why, bool tell) {
  if (shutdown_state_.over()) {
    // The job has ended while a collective was running. Now that it has returned, complete its operations with the error.
    for (OperationPtr& op : take_unfinished()) op->complete(shutdown_state_.error());
    return;
  }
  shutdown_state_.end(why);
  // First let the device operations that have finished by now succeed. All other unfinished operations fail below.
  look_at_devices();
  std::vector<OperationPtr> ops = submissions_->end(why);
  for (OperationPtr& op : take_unfinished()) ops.push_back(std::move(op));
  submissions_->count_failures(ops.size());
  std::string in_flight = busy_;
  if (in_bucket_) in_flight = std::string(name_of(in_bucket_->parts.front().kind)) + " '" + in_bucket_->parts.front().names.front() + "'";
  for (size_t i = 0; i < ops.size() && i < 6 && in_flight.empty(); ++i) in_flight = describe(*ops[i]);
  if (!in_flight.empty() && ops.size() > 1) in_flight += " and " + std::to_string(ops.size() - 1) + " more";
  const Status final_status =
      in_flight.empty() ? why : Status(why.code(), why.message() + "; in flight on " + label(rank_) + ": " + in_flight, why.rank());
  shutdown_state_.end(final_status);
  if (tell) {
    shutdown_state_.set_final_abort({executed_, why});
    flood(control_, *shutdown_state_.final_abort());
  }
  // Wake the local ranks that spin or sleep while waiting on shared memory.
  connections_.segment().header().abort.store(1, std::memory_order_seq_cst);
  for (int l = 0; l < connections_.local_size(); ++l) {
    if (l != connections_.local_rank()) connections_.wakeup_of(l).wake(SleepState::idle);
  }
  end_devices(final_status);
  for (OperationPtr& op : ops) op->complete(final_status);
  observers_->notify(&Observer::ended, final_status);
}

void Driver::leave(const std::string& reason) {
  if (message_bus_->any() && !shutdown_state_.over()) send_observer_messages();
  drain_devices();
  if (shutdown_state_.final_abort()) {
    flood(control_, *shutdown_state_.final_abort());
  } else {
    const std::string words = label(rank_) + " has left the job" + (reason.empty() ? "" : ": " + reason);
    flood(control_, Goodbye{shutdown_state_.promise(executed_, has_no_part()), Status(Code::shutdown, words, rank_)});
  }
  if (!shutdown_state_.over()) {
    const Status why(Code::shutdown, "this rank has called shutdown");
    shutdown_state_.end(why);
    std::vector<OperationPtr> ops = submissions_->end(why);
    for (OperationPtr& op : take_unfinished()) ops.push_back(std::move(op));
    end_devices(why);
    for (OperationPtr& op : ops) op->complete(why);
    observers_->refresh();
    observers_->notify(&Observer::ended, why);
  }
  // After an abort request, wait only briefly: neighbours probably do not respond, and all ranks get the request anyway.
  const Deadline deadline = Deadline::after(1.0), soon = Deadline::after(0.1);
  const auto enough = [&] { return deadline.passed() || (abort_request_->requested() && soon.passed()); };
  for (control_.pump(); !control_.parted() && !enough(); control_.pump()) {
    connections_.waiter().nap(Deadline::after(0.01));
    control_.probe();
  }
  nccl_path_.await_end();
  hierarchical_path_.await_end();
  ipc_path_.await_end();
}

}  // namespace hvd
