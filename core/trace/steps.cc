#include "trace/steps.h"

#include <algorithm>

namespace hvd {
namespace {

// What any algorithm has to carry over a rank's link, each way, for so many bytes of Execution::bytes.
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
}

void StepMeter::schedule_begun(const Schedule& schedule) {
  last_ = schedule.buckets.empty() ? nullptr : &schedule.buckets.back();
  std::lock_guard lock(mutex_);
  if (!told_) begun_ = false;  // what was between two schedules is no step
}

void StepMeter::bucket_done(const Schedule::Bucket& bucket) {
  if (&bucket == last_ && finding_.load(std::memory_order_relaxed)) mark(0, true);
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
    if (found && told_) return;
    const Reading now = read();
    if (!found && !told_) {  // those that were found so far were others
      told_ = true;
      begun_ = false;
      number_ = 1;
      steps_.clear();
      first_ = 0;
    }
    if (begun_) {
      // A wait that goes on is counted up to here; the other sums only grow.
      const uint64_t blocked = now.blocked > before_.blocked ? now.blocked - before_.blocked : 0;
      const Step step{number_++,
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
      if (steps_.size() < kMost) {
        steps_.push_back(step);
      } else {
        steps_[first_] = step;
        first_ = (first_ + 1) % kMost;
      }
      if (asleep_) wake = mailbox_;
      asleep_ = false;
    }
    begun_ = true;
    before_ = now;
    made_.store(number_, std::memory_order_relaxed);
    if (listener_) listener_(number_);
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
