// Part of the driver that handles received messages and, on rank 0, the coordinator's decisions.
#include "engine/driver.h"

namespace hvd {
namespace {

// Log sink that keeps messages in memory, so that they can be written later.
class LogBuffer {
 public:
  LogSink sink() {
    return [this](LogLevel level, const std::string& text) { all_.emplace_back(level, text); };
  }
  void tell(const LogSink& log) const {
    if (!log) return;
    for (const auto& [level, text] : all_) log(level, text);
  }

 private:
  std::vector<std::pair<LogLevel, std::string>> all_;
};

}  // namespace

bool Driver::receive() {
  control_.pump();
  hear_urgent();
  bool moved = false;
  Frame frame;
  while (!shutdown_state_.over() && control_.pop(&frame)) {
    on_frame(frame);
    moved = true;
  }
  if (coordinator_ && !shutdown_state_.over()) {
    if (coordinator_->negotiator().has_pending()) look_for_stalls();
    decide();
  }
  return moved;
}

void Driver::look_for_stalls() {
  // Seconds after which operations with the same name but different kinds, requested by different ranks, fail.
  constexpr double kDivergence = 2.0;
  Negotiator& negotiator = coordinator_->negotiator();
  if (now() - last_divergence_check_ > kDivergence / 4) {
    last_divergence_check_ = now();
    negotiator.fail_diverged(now() - kDivergence);
  }
  // Write the log last, because logging can block on the Python interpreter.
  LogBuffer buffer;
  bool warned = false;
  const Status end = stall_check_.check(negotiator, now(), buffer.sink(), &warned);
  if (warned) observers_->notify(&Observer::waiting, negotiator.waiting(now() - settings_.stall_warning), now(), false);
  if (warned) broadcast(control_, StalledKeys{coordinator_->epoch(), negotiator.keys()});
  buffer.tell(log_);
  if (!end.ok() && !awaits_report()) fail(with_report(end), true);
}

bool Driver::awaits_report() {
  constexpr double kPatience = 6.0;
  if (!message_bus_->report_may_come()) return false;
  if (report_asked_ == 0) {
    report_asked_ = now();
    observers_->notify(&Observer::waiting, coordinator_->negotiator().waiting(now() - settings_.stall_warning), now(), false);
  }
  // Tell the other ranks which operations rank 0 knows to be waiting. Otherwise, a rank might end the job itself before the report is
  // written.
  broadcast(control_, StalledKeys{coordinator_->epoch(), coordinator_->negotiator().keys()});
  return now() - report_asked_ < kPatience;
}

void Driver::decide() {
  // Read the epoch before decide(), which can advance it: the message must carry the old epoch.
  const uint64_t epoch = coordinator_->epoch();
  std::vector<Response> responses = coordinator_->decide();
  if (responses.empty()) return;
  observers_->notify(&Observer::decided, responses);
  broadcast(control_, Decisions{epoch, std::move(responses)});
  Frame own;
  while (control_.pop(&own)) on_frame(own);
}

void Driver::send_observer_messages() {
  bool asked = false;
  for (ObserverMessage& message : message_bus_->take(&asked)) {
    // Send a message only to its receiver, because broadcasts of messages for single ranks would be expensive in a large job.
    if (coordinator_ && message.to >= 0) {
      const int to = message.to;
      if (to < connections_.size())
        send_down(control_, ObserverMessageDown{to, message.topic, std::move(message.body)}, connections_.below_root(to));
    } else if (coordinator_) {
      broadcast(control_, ObserverMessageDown{message.to, message.topic, std::move(message.body)});
    } else {
      send_up(control_, ObserverMessageUp{message.topic, std::move(message.body)});
    }
  }
  if (asked && coordinator_) observers_->notify(&Observer::waiting, coordinator_->negotiator().waiting(now()), now(), true);
}

void Driver::on_frame(const Frame& frame) {
  const int from = frame.origin;
  if (from < 0 || from >= connections_.size()) {
    fail(Status(Code::internal, "control message from rank " + std::to_string(from) + ", which does not exist"), true);
    return;
  }
  std::optional<Message> message = message_in(frame);
  const bool good = message && std::visit([&](auto& m) { return on(from, m); }, *message);
  if (!good) fail(Status(Code::internal, "invalid control message from " + label(from)), true);
}

// ---- Messages received on rank 0 ------------------------------------------------------------------------------------
bool Driver::on(int from, ReadyRequests& message) {
  if (!coordinator_) return false;
  observers_->notify(&Observer::noticed, from, message.requests);
  coordinator_->add_requests(from, message.epoch, std::move(message.requests), now());
  return true;
}

bool Driver::on(int from, ReadyUpTo& message) {
  if (!coordinator_) return false;
  uint64_t go = 0;
  if (coordinator_->on_ready(from, message.schedule, message.position, &go)) broadcast(control_, GoUpTo{message.schedule, go});
  return true;
}

bool Driver::on(int, Revoke& message) {
  if (!coordinator_) return false;
  uint64_t final_position = 0;
  if (coordinator_->on_revoke(message.schedule, &final_position)) broadcast(control_, Revoked{message.schedule, final_position});
  return true;
}

bool Driver::on(int from, Settled& message) {
  if (coordinator_) coordinator_->settled(from, message.epoch);
  return true;
}

bool Driver::on(int from, ObserverMessageUp& message) {
  if (!coordinator_) return false;
  observers_->notify(&Observer::received, from, message.topic, std::string_view(message.body));
  return true;
}

// ---- Messages received from rank 0 ----------------------------------------------------------------------------------
bool Driver::on(int, Decisions& message) {
  observers_->notify(&Observer::agreed, message.responses);
  // If an unnamed operation has failed, skip its number on ranks that have not submitted it, so that later unnamed operations get equal
  // names on all ranks. Do this before any operation of the message completes, because its caller might submit the next one immediately.
  for (const Response& response : message.responses) {
    if (response.error.ok()) continue;
    for (const std::string& name : response.names) {
      if (!pending_.count(key_of(response.set, response.frontend, name))) submissions_->skip_unnamed(response, name);
    }
  }
  for (Response& response : message.responses) order_.push_back(std::move(response));
  return true;
}

bool Driver::on(int, GoUpTo& message) {
  if (schedule_sync_ && schedule_sync_->id() == message.schedule) schedule_sync_->on_go(message.position);
  return true;
}

bool Driver::on(int, Revoked& message) {
  if (schedule_sync_ && schedule_sync_->id() == message.schedule) {
    schedule_sync_->on_revoked(message.position);
  } else {
    // The schedule that this message ends might still be queued in order_, so keep the message. An early GoUpTo can be ignored, because the
    // next one replaces it.
    early_revoked_ = message;
  }
  return true;
}

bool Driver::on(int, StalledKeys& message) {
  local_stall_check_.known(message.keys, now());
  return true;
}

bool Driver::on(int from, ObserverMessageDown& message) {
  if (message.to < 0 || message.to == rank_) observers_->notify(&Observer::received, from, message.topic, std::string_view(message.body));
  return true;
}

// ---- Goodbyes and aborts, which hear_urgent() handles before other messages -----------------------------------------
bool Driver::on(int, Goodbye& message) {
  shutdown_state_.add_goodbye(std::move(message));
  return true;
}

bool Driver::on(int, Abort& message) {
  shutdown_state_.set_final_abort(message);
  fail(std::move(message.why), false);
  return true;
}

}  // namespace hvd
