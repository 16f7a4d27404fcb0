// Part of the Submissions class that moves operations into a schedule's cursor, and out of it bucket by bucket or at the schedule's end.
// Operations that could wait forever in the schedule are negotiated instead.
#include <algorithm>

#include "engine/submissions.h"

namespace hvd {

bool Submissions::offer(const OperationPtr& op, uint32_t entry, bool* completed) {
  if (!cursor_->offer(entry, op->request, op.get(), completed)) return false;
  keep(op, entry);
  ready_.store(cursor_->ready(), std::memory_order_seq_cst);
  return true;
}

// Mark an operation as part of the running schedule, and keep it alive.
void Submissions::keep(const OperationPtr& op, uint32_t entry) {
  op->schedule = cursor_->schedule().id;
  op->entry = entry;
  op->scheduled = true;
  op->held = op;
}

OperationPtr Submissions::let_go(void* token) { return std::move(static_cast<Operation*>(token)->held); }

void Submissions::begin_schedule(std::unique_ptr<ScheduleCursor> cursor, const std::vector<OperationPtr>& unanswered) {
  std::lock_guard lock(mutex_);
  cursor_ = std::move(cursor);
  ready_.store(cursor_->ready(), std::memory_order_seq_cst);
  deviated_ = false;
  stuck_ = false;
  std::vector<OperationPtr> all = unanswered;
  all.insert(all.end(), queue_.begin(), queue_.end());
  queue_.clear();
  std::sort(all.begin(), all.end(), [](const OperationPtr& a, const OperationPtr& b) { return a->sequence < b->sequence; });
  for (const OperationPtr& op : all) {
    bool completed;
    if (op->on_done) must_watch_.store(true, std::memory_order_relaxed);
    if (!deviated_ && offer(op, cursor_->find(op->request), &completed)) {
      if (!op->request.unnamed) in_flight_.erase(key_of(op->request));
    } else {
      deviated_ = true;
      queue_.push_back(op);
    }
  }
  queued_.store(queue_.size(), std::memory_order_seq_cst);
}

// Remove and return the operations that the schedule holds but has not started.
std::vector<OperationPtr> Submissions::take_outstanding() {
  std::vector<OperationPtr> out;
  if (!cursor_) return out;
  for (void* token : cursor_->outstanding()) {
    out.push_back(let_go(token));
    out.back()->scheduled = false;
  }
  cursor_.reset();
  return out;
}

std::vector<OperationPtr> Submissions::end_schedule() {
  std::lock_guard lock(mutex_);
  std::vector<OperationPtr> out = take_outstanding();
  for (const OperationPtr& op : out) {
    if (!op->request.unnamed) in_flight_.insert(key_of(op->request));
  }
  deviated_ = false;
  stuck_ = false;
  out.insert(out.end(), queue_.begin(), queue_.end());
  queue_.clear();
  queued_.store(0, std::memory_order_seq_cst);
  std::sort(out.begin(), out.end(), [](const OperationPtr& a, const OperationPtr& b) { return a->sequence < b->sequence; });
  return out;
}

Submissions::Progress Submissions::progress() const {
  if (!cursor_) return {};
  return {ready_.load(std::memory_order_seq_cst), cursor_->executed(), deviated_, stuck_};
}

size_t Submissions::buckets() const {
  std::lock_guard lock(mutex_);
  return cursor_ ? cursor_->schedule().buckets.size() : 0;
}

const Schedule::Bucket* Submissions::take_bucket(std::vector<Operation*>* operations, std::vector<OperationPtr>* keep) {
  std::lock_guard lock(mutex_);
  const Schedule::Bucket& bucket = cursor_->take(&tokens_);
  ready_.store(cursor_->ready(), std::memory_order_seq_cst);
  operations->clear();
  operations->reserve(tokens_.size());
  keep->reserve(tokens_.size());
  for (void* token : tokens_) {
    operations->push_back(static_cast<Operation*>(token));
    if (!token) continue;
    keep->push_back(let_go(token));
    const Operation& op = *keep->back();
    if (op.on_device && !op.request.unnamed) in_flight_.insert(key_of(op.request));
  }
  return &bucket;
}

const Schedule::Bucket* Submissions::peek_bucket(std::vector<Operation*>* operations) {
  std::lock_guard lock(mutex_);
  const Schedule::Bucket& bucket = cursor_->peek(&tokens_);
  operations->clear();
  for (void* token : tokens_) operations->push_back(static_cast<Operation*>(token));
  return &bucket;
}

bool Submissions::nudge(const Operation& op, bool impatient) {
  std::lock_guard lock(mutex_);
  if (GroupAssembly::concerns(op.request) && impatient && release_part(op)) return true;
  if (!cursor_ || deviated_) return false;
  const uint64_t carried = op.on_device ? op.on_device->carried.load(std::memory_order_relaxed) : 0;
  bool vain = cursor_->stuck(&op);
  if (!vain && (impatient || carried)) {
    for (void* token : cursor_->outstanding()) {
      const auto* other = static_cast<const Operation*>(token);
      if (other != &op && (!carried || other->carries != carried)) continue;
      vain = vain || impatient || in_vain(*other);
    }
  }
  // Store stuck_ before deviated_, because progress() reads deviated_ first, without the lock.
  if (vain) deviated_ = stuck_ = true;
  return vain;
}

// True if an operation of the schedule waits for operations that only the program can submit.
bool Submissions::in_vain(const Operation& op) const {
  if (!cursor_->stuck(&op)) return false;
  // The missing operations might be ones that the engine itself submits. Wait until it has submitted all of them and no bucket is about to
  // start.
  return !op.carries || (expected_ == 0 && cursor_->ready() == cursor_->executed());
}

// Release the incomplete group that holds `op`, so that its operations are negotiated and rank 0 reports what they wait for.
bool Submissions::release_part(const Operation& op) {
  bool wake = false;
  for (const OperationPtr& member : assembly_.take_with(op)) {
    forget_name(*member);
    enter(member, ScheduleCursor::kNoEntry, &wake);
  }
  return wake;
}

bool Submissions::nudge_unattended(double patience, double impatience, bool* waiting) {
  std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  const auto seconds = [now](Clock::time_point since) { return std::chrono::duration<double>(now - since).count(); };
  const Operation* held = assembly_.oldest_unattended();
  *waiting = held != nullptr;
  if (held && seconds(held->submitted) >= impatience) return release_part(*held);
  if (!cursor_ || deviated_) return false;
  for (void* token : cursor_->outstanding()) {
    const auto* op = static_cast<const Operation*>(token);
    if (!op->on_done) continue;
    *waiting = true;
    const double age = seconds(op->submitted);
    if (age < patience || (age < impatience && (seconds(last_) < patience || !in_vain(*op)))) continue;
    deviated_ = stuck_ = true;
    return true;
  }
  return false;
}

}  // namespace hvd
