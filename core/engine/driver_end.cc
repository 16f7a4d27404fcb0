// How a job ends: a rank leaves, is lost, or a collective fails; who is told, and what becomes of operations under way.
#include <algorithm>

#include "base/wire.h"
#include "engine/driver.h"

namespace hvd {
namespace {

std::string describe(const Operation& op) {
  const std::string name = op.request.unnamed ? "unnamed, " + shape_string(op.request.shape) : op.request.name;
  return std::string(name_of(op.request.kind)) + " '" + name + "'";
}

}  // namespace

// What is announced, and what cannot be because a schedule does not end: whoever waits in vain in a schedule asks to leave it.
bool Driver::anything_waits() const { return !pending_.empty() || !joins_.empty() || (steady_ && steady_->frozen()); }

void Driver::watch() {
  if (!anything_waits()) return;
  const double present = now();
  if (!watch_.due(present)) return;
  const auto age = [this](Clock::time_point t) { return std::chrono::duration<double>(t - start_).count(); };
  std::vector<Watch::Waiting> waiting;
  for (const auto& [key, op] : pending_) waiting.push_back({key, describe(*op), age(op->announced)});
  // A rank that has joined waits for as long as others go on.
  for (const auto& [face, op] : joins_)
    waiting.push_back({key_of(0, face, kJoinName), "join", std::max(age(op->announced), last_executed_)});
  std::string why;
  if (const OperationPtr op = steady_ && steady_->frozen() ? submissions_->oldest_unannounced() : nullptr) {
    waiting.push_back({"", describe(*op), age(steady_->frozen_since())});
    why = steady_->waits_for();
  }
  if (Status s = watch_.check(waiting, why, present, log_); !s.ok()) fail(std::move(s), true);
}

Status Driver::hook() {
  control_.probe();
  control_.pump();
  hear_urgent();
  if (over_) return submissions_->ended();
  if (stopping_.load(std::memory_order_seq_cst)) return Status(Code::shutdown, label(rank_) + " has called shutdown");
  // A rank that has left took part in all operations up to some number; those still end well.
  if (beyond_goodbye()) return bye_->why;
  return world_.look_for_silence();
}

void Driver::hear_urgent() {
  Frame frame;
  while (control_.pop_urgent(&frame)) {
    parted_.insert(frame.origin);
    if (over_) continue;
    Reader r(frame.payload.data(), frame.payload.data() + frame.payload.size());
    uint64_t executed = 0;
    Code code = Code::ok;
    std::string text;
    r.get(&executed);
    r.get(&code, Code::internal);
    r.get(&text);
    const bool known = frame.origin >= 0 && frame.origin < world_.size();
    int32_t reason = frame.origin;
    if (frame.type == FrameType::abort) r.get(&reason);
    if (!r.ok() || !known || reason < -1 || reason >= world_.size()) {
      text = "unintelligible goodbye from " + (known ? label(frame.origin) : "rank " + std::to_string(frame.origin));
      reason = -1;
    }
    if (frame.type == FrameType::bye) {
      // Operations up to a goodbye still end well: of several goodbyes, up to the one that promises least.
      if (!bye_ || executed < bye_->executed) bye_ = Bye{frame.origin, executed, Status(Code::shutdown, text, reason)};
    } else {
      last_words_ = frame.payload;
      fail(Status(code == Code::ok ? Code::internal : code, text, reason), false);
    }
  }
  for (const auto& gone : control_.take_lost()) {
    if (!over_ && !parted_.count(gone.rank)) lost(gone.rank, gone.why);
  }
}

// What is being executed is something that a rank that has left takes no part in.
bool Driver::beyond_goodbye() const { return bye_ && executed_ > bye_->executed; }

// A rank without a part in the running schedule has nothing to do with it, and does not count its operations while it runs.
bool Driver::has_no_part() const { return steady_ && submissions_->progress().ready == kNoPart; }

// Somebody has left, and all that it took part in is done.
bool Driver::past_goodbye() const { return bye_ && (executed_ >= bye_->executed || has_no_part()); }

void Driver::collective_failed(const Status& status) {
  // A closed data link is a symptom; the control tree is about to say who has gone and why.
  const Deadline patience = Deadline::after(0.5);  // a starved machine needs more than a moment
  while (status.code() == Code::peer_lost && !over_ && !beyond_goodbye() && !patience.passed()) {
    world_.waiter().nap(Deadline::after(0.005));
    control_.probe();
    control_.pump();
    hear_urgent();
  }
  if (!over_ && stopping_.load(std::memory_order_seq_cst)) {
    --executed_;  // our goodbye must not promise it
    fail(status, false);
  } else if (!over_ && beyond_goodbye()) {
    fail(bye_->why, false);  // everybody hears that from the one who left
  } else {
    fail(status, true);
  }
}

std::vector<OperationPtr> Driver::take_unfinished() {
  std::vector<OperationPtr> ops;
  for (auto& [key, op] : pending_) ops.push_back(std::move(op));
  for (OperationPtr& op : to_announce_) ops.push_back(std::move(op));
  for (auto& [face, op] : joins_) ops.push_back(std::move(op));
  pending_.clear();
  joins_.clear();
  to_announce_.clear();
  return ops;
}

void Driver::lost(int rank, const Status& why) { fail(Status(Code::peer_lost, label(rank) + " was lost: " + why.message(), rank), true); }

void Driver::fail(Status why, bool tell) {
  if (over_) {
    // The end was heard inside a collective, which has now handed its operations back.
    for (OperationPtr& op : take_unfinished()) op->complete(told_);
    return;
  }
  over_ = true;
  std::vector<OperationPtr> ops = submissions_->end(why);
  for (OperationPtr& op : take_unfinished()) ops.push_back(std::move(op));
  std::string in_flight = busy_;
  if (in_bucket_) in_flight = std::string(name_of(in_bucket_->parts.front().kind)) + " '" + in_bucket_->parts.front().names.front() + "'";
  for (size_t i = 0; i < ops.size() && i < 6 && in_flight.empty(); ++i) in_flight = describe(*ops[i]);
  if (!in_flight.empty() && ops.size() > 1) in_flight += " and " + std::to_string(ops.size() - 1) + " more";
  told_ = in_flight.empty() ? why : Status(why.code(), why.message() + "; in flight on " + label(rank_) + ": " + in_flight, why.rank());
  if (tell) {
    last_words_.clear();
    Writer w(&last_words_);
    w.put(executed_);
    w.put(why.code());
    w.put(why.message());
    w.put(static_cast<int32_t>(why.rank()));
    control_.flood(FrameType::abort, last_words_);
  }
  // Local ranks that spin or sleep in shared memory.
  world_.segment().header().abort.store(1, std::memory_order_seq_cst);
  for (int l = 0; l < world_.local_size(); ++l) {
    if (l != world_.local_rank()) world_.bell_of(l).wake(Mood::idle);
  }
  for (OperationPtr& op : ops) op->complete(told_);
}

void Driver::leave(const std::string& reason) {
  if (last_words_.empty()) {
    // What this rank has done itself: the goodbye of who has left before may promise more than that. Without a part it takes nothing back.
    std::string words;
    Writer w(&words);
    w.put(bye_ && has_no_part() ? std::max(executed_, bye_->executed) : executed_);
    w.put(Code::shutdown);
    w.put(label(rank_) + " has left the job" + (reason.empty() ? "" : ": " + reason));
    control_.flood(FrameType::bye, words);
  } else {
    control_.flood(FrameType::abort, last_words_);
  }
  if (!over_) {
    over_ = true;
    const Status why(Code::shutdown, "this rank has called shutdown");
    std::vector<OperationPtr> ops = submissions_->end(why);
    for (OperationPtr& op : take_unfinished()) ops.push_back(std::move(op));
    for (OperationPtr& op : ops) op->complete(why);
  }
  constexpr double kGoodbye = 1.0;
  const Deadline deadline = Deadline::after(kGoodbye);
  for (control_.pump(); !control_.parted() && !deadline.passed(); control_.pump()) {
    world_.waiter().nap(Deadline::after(0.01));
    control_.probe();
  }
}

}  // namespace hvd
