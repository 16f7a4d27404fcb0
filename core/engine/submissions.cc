#include "engine/submissions.h"

#include <algorithm>
#include <cstdlib>

#include "engine/validate.h"

namespace hvd {

Submissions::Submissions(int rank, int size) : rank_(rank) {
  for (int r = 0; r < size; ++r) sets_[0].push_back(r);
}

Status Submissions::accept(const OperationPtr& op) {
  Request& q = op->request;
  if (!ended_.ok()) return ended_;
  const auto set = sets_.find(q.set);
  if (set == sets_.end()) {
    return Status(Code::invalid_argument, std::string(name_of(q.kind)) + ": process set " + std::to_string(q.set) + " is unknown or was removed");
  }
  const auto& members = set->second;
  if (!std::binary_search(members.begin(), members.end(), rank_)) {
    return Status(Code::invalid_argument, std::string(name_of(q.kind)) + ": rank " + std::to_string(rank_) + " is not a member of process set " +
                                              std::to_string(q.set) + " with ranks " + shape_string({members.begin(), members.end()}));
  }
  if (q.kind == Kind::alltoall && q.splits.empty() && !q.shape.empty()) {
    const int64_t n = static_cast<int64_t>(members.size());
    if (q.shape[0] % n) {
      return Status(Code::invalid_argument, "alltoall '" + q.name + "': without splits the first dimension must be a multiple of the " +
                                                std::to_string(n) + " ranks, got " + std::to_string(q.shape[0]));
    }
    q.splits.assign(members.size(), q.shape[0] / n);
  }
  HVD_RETURN_IF_ERROR(check_arguments(q, members));
  if (!q.unnamed && !in_flight_.insert(key_of(q.set, q.name)).second) {
    return Status(Code::invalid_argument, std::string(name_of(q.kind)) + ": an operation named '" + q.name +
                                              "' is still in flight; wait for it before you use the name again");
  }
  return {};
}

Status Submissions::submit(const OperationPtr& op, bool* wake) {
  std::lock_guard lock(mutex_);
  Request& q = op->request;
  q.unnamed = q.name.empty();
  HVD_RETURN_IF_ERROR(accept(op));
  q.fence = fence_;
  op->sequence = next_sequence_++;
  uint64_t number = 0;
  if (q.unnamed) number = unnamed_[stream_of(q.set, q.kind)]++;
  if (cursor_ && !deviated_) {
    bool completed = false;
    if (cursor_->offer(q, op.get(), &completed)) {
      op->unnamed_number = number;
      scheduled_.emplace(op.get(), op);
      *wake = completed;
      return {};
    }
    deviated_ = true;
  }
  op->unnamed_number = number;
  queue_.push_back(op);
  queued_.store(queue_.size(), std::memory_order_seq_cst);
  last_ = op->submitted = Clock::now();
  *wake = true;
  return {};
}

void Submissions::fence() {
  std::lock_guard lock(mutex_);
  ++fence_;
}

std::vector<OperationPtr> Submissions::take() {
  std::lock_guard lock(mutex_);
  std::vector<OperationPtr> out;
  out.swap(queue_);
  queued_.store(0, std::memory_order_seq_cst);
  return out;
}

Clock::time_point Submissions::last_submission() const {
  std::lock_guard lock(mutex_);
  return last_;
}

void Submissions::skip_unnamed(uint32_t set, Kind kind, const std::string& name) {
  const std::string prefix = unnamed_prefix(kind);
  if (name.rfind(prefix, 0) != 0) return;
  const uint64_t number = std::strtoull(name.c_str() + prefix.size(), nullptr, 10);
  std::lock_guard lock(mutex_);
  uint64_t& next = unnamed_[stream_of(set, kind)];
  next = std::max(next, number + 1);
}

void Submissions::add_set(uint32_t id, std::vector<int> ranks) {
  std::lock_guard lock(mutex_);
  sets_[id] = std::move(ranks);
  erase_unnamed(id);  // an id may have belonged to other ranks before
}

void Submissions::restart_unnamed(uint32_t id) {
  std::lock_guard lock(mutex_);
  erase_unnamed(id);
}

void Submissions::erase_unnamed(uint32_t id) {
  const uint64_t first = static_cast<uint64_t>(id) << 8;
  unnamed_.erase(unnamed_.lower_bound(first), unnamed_.lower_bound(first + 256));
}

void Submissions::remove_set(uint32_t id) {
  std::lock_guard lock(mutex_);
  sets_.erase(id);
}

std::map<uint32_t, std::vector<int>> Submissions::sets() const {
  std::lock_guard lock(mutex_);
  return sets_;
}

void Submissions::begin_schedule(std::unique_ptr<ScheduleCursor> cursor, const std::vector<OperationPtr>& unanswered) {
  std::lock_guard lock(mutex_);
  cursor_ = std::move(cursor);
  deviated_ = stuck_ = false;
  std::vector<OperationPtr> all = unanswered;
  all.insert(all.end(), queue_.begin(), queue_.end());
  queue_.clear();
  std::sort(all.begin(), all.end(), [](const OperationPtr& a, const OperationPtr& b) { return a->sequence < b->sequence; });
  for (const OperationPtr& op : all) {
    bool completed;
    if (!deviated_ && cursor_->offer(op->request, op.get(), &completed)) {
      scheduled_.emplace(op.get(), op);
    } else {
      deviated_ = true;
      queue_.push_back(op);
    }
  }
  queued_.store(queue_.size(), std::memory_order_seq_cst);
}

std::vector<OperationPtr> Submissions::end_schedule() {
  std::lock_guard lock(mutex_);
  std::vector<OperationPtr> out;
  for (auto& [raw, op] : scheduled_) out.push_back(std::move(op));
  scheduled_.clear();
  cursor_.reset();
  deviated_ = stuck_ = false;
  out.insert(out.end(), queue_.begin(), queue_.end());
  queue_.clear();
  queued_.store(0, std::memory_order_seq_cst);
  std::sort(out.begin(), out.end(), [](const OperationPtr& a, const OperationPtr& b) { return a->sequence < b->sequence; });
  return out;
}

Submissions::Progress Submissions::progress() const {
  std::lock_guard lock(mutex_);
  if (!cursor_) return {};
  return {cursor_->ready(), cursor_->executed(), deviated_, stuck_};
}

size_t Submissions::buckets() const {
  std::lock_guard lock(mutex_);
  return cursor_ ? cursor_->schedule().buckets.size() : 0;
}

const Schedule::Bucket* Submissions::take_bucket(std::vector<Operation*>* operations, std::vector<OperationPtr>* keep) {
  std::lock_guard lock(mutex_);
  std::vector<void*> tokens;
  const Schedule::Bucket& bucket = cursor_->take(&tokens);
  operations->clear();
  for (void* token : tokens) {
    auto* op = static_cast<Operation*>(token);
    operations->push_back(op);
    auto it = scheduled_.find(op);
    if (it == scheduled_.end()) continue;
    keep->push_back(std::move(it->second));
    scheduled_.erase(it);
  }
  return &bucket;
}

const Schedule::Bucket* Submissions::peek_bucket(std::vector<Operation*>* operations) const {
  std::lock_guard lock(mutex_);
  std::vector<void*> tokens;
  const Schedule::Bucket& bucket = cursor_->peek(&tokens);
  operations->clear();
  for (void* token : tokens) operations->push_back(static_cast<Operation*>(token));
  return &bucket;
}

void Submissions::release(const std::vector<Operation*>& operations) {
  std::lock_guard lock(mutex_);
  for (Operation* op : operations) {
    if (op && !op->request.unnamed) in_flight_.erase(key_of(op->request.set, op->request.name));
  }
}

bool Submissions::nudge(const Operation& op, bool impatient) {
  std::lock_guard lock(mutex_);
  if (!cursor_ || deviated_) return false;
  if (!cursor_->stuck(&op)) {
    if (!impatient) return false;
    const std::vector<void*> waiting = cursor_->outstanding();
    if (std::find(waiting.begin(), waiting.end(), &op) == waiting.end()) return false;
  }
  deviated_ = stuck_ = true;
  return true;
}

std::vector<OperationPtr> Submissions::end(Status why) {
  std::lock_guard lock(mutex_);
  std::vector<OperationPtr> out;
  if (ended_.ok()) ended_ = std::move(why);
  out.swap(queue_);
  for (auto& [raw, op] : scheduled_) out.push_back(std::move(op));
  scheduled_.clear();
  cursor_.reset();
  in_flight_.clear();
  queued_.store(0, std::memory_order_seq_cst);
  return out;
}

Status Submissions::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace hvd
