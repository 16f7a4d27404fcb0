#include "trace/steps.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

// Return the minimum number of bytes that any algorithm must send over a rank's link in each direction. `bytes` is Execution::bytes.
uint64_t moved_by(Kind kind, int ranks, uint64_t bytes) {
  const double others = ranks < 2 ? 0 : static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case Kind::allreduce: return static_cast<uint64_t>(2 * others * static_cast<double>(bytes));
    case Kind::broadcast: return ranks < 2 ? 0 : bytes;
    case Kind::allgather:
    case Kind::alltoall:
    case Kind::reducescatter: return static_cast<uint64_t>(others * static_cast<double>(bytes));
    default: return 0;
  }
}

}  // namespace

void StepMeter::finished(const Execution& execution, const Status&) {
  const uint64_t now = ticks(), since = waits_->since();
  const uint64_t seen = since && since < now ? now - std::max(since, started_) : 0;
  collectives_.add(now - started_);
  hidden_.add(now - started_ - seen);
  bytes_.add(execution.bytes);
  moved_.add(moved_by(execution.response.kind, execution.comm.size, execution.bytes));
  operations_.add(1);
  tensors_.add(execution.response.names.size());
  if (!scheduled_ && finding_.load(std::memory_order_relaxed)) negotiated(execution.response.names);
}

void StepMeter::negotiated(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (name == last_name_) {
      count(1);
    } else if (const auto known = executed_.find(name); known != executed_.end()) {
      ++known->second;
    } else if (executed_.size() < kMaxNames) {
      executed_.emplace(name, 1);
    }
  }
}

void StepMeter::count(uint64_t steps) {
  std::lock_guard lock(mutex_);
  if (explicit_) return;
  begun_ = false;
  ended_ += steps;
  made_.store(ended_, std::memory_order_relaxed);
}

// Find the operation that ends each step. If a program has other loops, such as validation, use the most frequent operation.
void StepMeter::schedule_begun(const Schedule& schedule) {
  scheduled_ = true;
  last_ = nullptr;
  rival_.clear();
  for (const Schedule::Bucket& bucket : schedule.buckets) {
    for (const Response& part : bucket.parts) {
      if (std::ranges::find(part.names, last_name_) != part.names.end()) last_ = &bucket;
    }
  }
  if (!last_ && !schedule.buckets.empty()) {
    last_ = &schedule.buckets.back();
    rival_ = last_->parts.back().names.back();
  }
  std::lock_guard lock(mutex_);
  // The time between two schedules is not a step.
  if (!explicit_) begun_ = false;
}

void StepMeter::bucket_done(const Schedule::Bucket& bucket) {
  if (&bucket != last_ || !finding_.load(std::memory_order_relaxed)) return;
  if (!rival_.empty()) {
    uint64_t& times = executed_[rival_];
    if (times < made()) {
      ++times;
      return;
    }
    const uint64_t before = made(), more = times - before;
    executed_.erase(rival_);
    if (!last_name_.empty()) executed_.emplace(last_name_, before);
    last_name_ = std::exchange(rival_, {});
    count(more);
  }
  mark(0, true);
}

StepMeter::Reading StepMeter::read() const {
  const uint64_t now = ticks();
  return {now,
          waits_->blocked(now),
          collectives_.get(),
          hidden_.get(),
          bytes_.get(),
          moved_.get(),
          operations_.get(),
          tensors_.get(),
          waits_->left_unattended()};
}

void StepMeter::mark(uint64_t data_ns, bool found) {
  std::shared_ptr<Mailbox> wake;
  {
    std::lock_guard lock(mutex_);
    if (found && explicit_) return;
    const Reading now = read();
    // At the first explicit step, drop all steps that were detected before.
    if (!found && !explicit_) {
      explicit_ = true;
      begun_ = false;
      ended_ = 0;
      steps_.clear();
      first_ = 0;
    }
    if (begun_) {
      // Keep the difference from being negative: the earlier reading includes a wait in progress, whose recorded time can be shorter in the
      // end.
      const uint64_t blocked = now.blocked > before_.blocked ? now.blocked - before_.blocked : 0;
      const Step step{ended_,
                      now.at,
                      now.at - before_.at,
                      data_ns,
                      blocked,
                      now.collectives - before_.collectives,
                      now.hidden - before_.hidden,
                      now.bytes - before_.bytes,
                      now.moved - before_.moved,
                      now.operations - before_.operations,
                      now.tensors - before_.tensors,
                      waits_->arrival(),
                      now.unattended - before_.unattended};
      if (steps_.size() < kMax) {
        steps_.push_back(step);
      } else {
        steps_[first_] = step;
        first_ = (first_ + 1) % kMax;
      }
      if (asleep_) wake = mailbox_;
      asleep_ = false;
    }
    begun_ = true;
    before_ = now;
    made_.store(++ended_, std::memory_order_relaxed);
    if (listener_) listener_(ended_);
  }
  if (wake) wake->put(Topic::python, go_on_);
}

std::vector<StepMeter::Step> StepMeter::take() {
  std::lock_guard lock(mutex_);
  std::vector<Step> taken;
  taken.reserve(steps_.size());
  taken.insert(taken.end(), steps_.begin() + static_cast<ptrdiff_t>(first_), steps_.end());
  taken.insert(taken.end(), steps_.begin(), steps_.begin() + static_cast<ptrdiff_t>(first_));
  steps_.clear();
  first_ = 0;
  asleep_ = taken.empty();
  return taken;
}

void StepMeter::wake(std::shared_ptr<Mailbox> mailbox, std::string go_on) {
  std::lock_guard lock(mutex_);
  mailbox_ = std::move(mailbox);
  go_on_ = std::move(go_on);
}

void StepMeter::listen(std::function<void(uint64_t)> begun) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(begun);
}

}  // namespace hvd
