#include "engine/submissions.h"

#include <algorithm>
#include <cstdlib>

#include "agree/validate.h"

namespace hvd {

Submissions::Submissions(int rank, int size) : rank_(rank) {
  for (int r = 0; r < size; ++r) sets_[0].push_back(r);
}

// Check all that this rank can check in a request on its own, except for the name.
Status Submissions::check(Request& q) const {
  if (!ended_.ok()) {
    failures_->fetch_add(1, std::memory_order_relaxed);
    return ended_;
  }
  const auto set = sets_.find(q.set);
  if (set == sets_.end()) {
    return Status(Code::invalid_argument,
                  std::string(name_of(q.kind)) + ": process set " + std::to_string(q.set) + " is unknown or was removed");
  }
  const auto& members = set->second;
  if (!std::binary_search(members.begin(), members.end(), rank_)) {
    return Status(Code::invalid_argument, std::string(name_of(q.kind)) + ": rank " + std::to_string(rank_) +
                                              " is not a member of process set " + std::to_string(q.set) + " with ranks " +
                                              shape_string({members.begin(), members.end()}));
  }
  if (q.kind == Kind::alltoall && q.splits.empty() && !q.shape.empty()) {
    const int64_t n = static_cast<int64_t>(members.size());
    if (q.shape[0] % n) {
      return Status(Code::invalid_argument, "alltoall '" + q.name + "': without splits the first dimension must be a multiple of the " +
                                                std::to_string(n) + " ranks, got " + std::to_string(q.shape[0]));
    }
    q.splits.assign(members.size(), q.shape[0] / n);
  }
  return check_arguments(q, members);
}

// Check that the name of a request is not in flight. `entry` is its entry in the running schedule, or kNoEntry.
Status Submissions::check_name(const Request& q, uint32_t entry) const {
  if (q.unnamed) return {};
  const bool taken =
      (entry != ScheduleCursor::kNoEntry && cursor_->busy(entry)) || (!in_flight_.empty() && in_flight_.count(key_of(q)) != 0);
  if (!taken) return {};
  return Status(Code::invalid_argument, std::string(name_of(q.kind)) + ": an operation named '" + q.name +
                                            "' is still in flight; wait for it before you use the name again");
}

Status Submissions::submit(const OperationPtr& op, bool* wake) {
  std::vector<OperationPtr> refused;
  Status status;
  {
    std::lock_guard lock(mutex_);
    if (op->carries) --expected_;
    status = submit_locked(op, wake, &refused);
    if (status.ok()) count_on_device(*op);
    for (const OperationPtr& member : refused) forget_on_device(*member);
  }
  // Completion callbacks can submit operations, so the lock must not be held here.
  for (const OperationPtr& member : refused) member->complete(status.with("group '" + op->request.group + "'"));
  return status;
}

// Submit an operation; the caller holds the lock. If it is rejected, `refused` receives the earlier operations of its group, which the
// caller must fail, too.
Status Submissions::submit_locked(const OperationPtr& op, bool* wake, std::vector<OperationPtr>* refused) {
  Request& q = op->request;
  q.unnamed = q.name.empty();
  Status status = check(q);
  const uint32_t entry = status.ok() && cursor_ ? cursor_->find(q) : ScheduleCursor::kNoEntry;
  if (status.ok()) status = check_name(q, entry);
  if (GroupAssembly::concerns(q)) return join_group(op, std::move(status), refused, wake);
  if (status.ok()) enter(op, entry, wake);
  return status;
}

Status Submissions::join_group(const OperationPtr& op, Status status, std::vector<OperationPtr>* refused, bool* wake) {
  if (status.ok()) status = assembly_.refusal(op->request);
  if (!status.ok()) {
    *refused = assembly_.refuse(op->request, status);
    for (const OperationPtr& member : *refused) forget_name(*member);
    return status;
  }
  if (!op->request.unnamed) in_flight_.insert(key_of(op->request));
  if (op->on_done) op->submitted = Clock::now();
  for (const OperationPtr& member : assembly_.add(op)) {
    forget_name(*member);
    enter(member, cursor_ ? cursor_->find(member->request) : ScheduleCursor::kNoEntry, wake);
  }
  return {};
}

// Accept an operation that does not wait for others of its group.
void Submissions::enter(const OperationPtr& op, uint32_t entry, bool* wake) {
  Request& q = op->request;
  if (!op->carries) q.fence = fence_;
  op->sequence = next_sequence_++;
  if (q.unnamed) op->unnamed_number = unnamed_[stream_of(q.set, q.frontend, q.kind)]++;
  if (op->on_done) {
    // The watchdog needs the submission time of operations with a callback. For others, the waiting caller measures its own time.
    last_ = op->submitted = Clock::now();
    must_watch_.store(true, std::memory_order_relaxed);
  }
  bool completed = false;
  if (cursor_ && !deviated_) {
    if (offer(op, entry, &completed)) {
      *wake = *wake || completed;
      return;
    }
    deviated_ = true;
  }
  if (!q.unnamed) in_flight_.insert(key_of(q));
  queue_.push_back(op);
  queued_.store(queue_.size(), std::memory_order_seq_cst);
  last_ = op->submitted = Clock::now();
  *wake = true;
}

void Submissions::forget_name(const Operation& op) {
  if (!op.request.unnamed) in_flight_.erase(key_of(op.request));
}

void Submissions::count_on_device(const Operation& op) {
  if (!op.on_device) return;
  ++on_devices_[op.request.set];
}

void Submissions::forget_on_device(const Operation& op) {
  if (!op.on_device) return;
  const auto count = on_devices_.find(op.request.set);
  if (--count->second == 0) on_devices_.erase(count);
}

bool Submissions::on_devices() const {
  std::lock_guard lock(mutex_);
  return !on_devices_.empty();
}

bool Submissions::on_devices(uint32_t set) const {
  std::lock_guard lock(mutex_);
  return on_devices_.count(set) != 0;
}

Status Submissions::submit_again(const OperationPtr& op, bool* wake) {
  {
    std::lock_guard lock(mutex_);
    // A request of the running schedule needs no full check. That could only find a removed set or the end of the job, both of which would
    // have ended the schedule.
    const bool known = cursor_ && !deviated_ && !op->request.unnamed && op->schedule == cursor_->schedule().id;
    if (known && !GroupAssembly::concerns(op->request) && !cursor_->repeated(op->entry) && !cursor_->busy(op->entry)) {
      op->request.fence = fence_;
      op->sequence = next_sequence_++;
      cursor_->offer_again(op->entry, op.get(), wake);
      keep(op, op->entry);
      ready_.store(cursor_->ready(), std::memory_order_seq_cst);
      return {};
    }
  }
  return submit(op, wake);
}

void Submissions::fence() {
  uint64_t fence = fence_.load(std::memory_order_relaxed);
  while (!fence_.compare_exchange_weak(fence, ((fence >> kWeakFenceBits) + 1) << kWeakFenceBits, std::memory_order_relaxed)) {
  }
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

OperationPtr Submissions::oldest_unannounced() const {
  std::lock_guard lock(mutex_);
  OperationPtr oldest = queue_.empty() ? nullptr : queue_.front();
  if (!cursor_) return oldest;
  for (void* token : cursor_->outstanding()) {
    const OperationPtr& op = static_cast<Operation*>(token)->held;
    if (!oldest || op->sequence < oldest->sequence) oldest = op;
  }
  return oldest;
}

void Submissions::skip_unnamed(const Response& response, const std::string& name) {
  const std::string prefix = unnamed_prefix(response.kind);
  if (name.rfind(prefix, 0) != 0) return;
  const uint64_t number = std::strtoull(name.c_str() + prefix.size(), nullptr, 10);
  std::lock_guard lock(mutex_);
  uint64_t& next = unnamed_[stream_of(response.set, response.frontend, response.kind)];
  next = std::max(next, number + 1);
}

void Submissions::add_set(uint32_t id, std::vector<int> ranks) {
  std::lock_guard lock(mutex_);
  sets_[id] = std::move(ranks);
  // Number the set's unnamed operations from 0 again, because a removed set with other ranks might have had the same id.
  erase_unnamed(stream_of(id, 0, Kind{}), stream_of(id + 1, 0, Kind{}));
}

void Submissions::restart_unnamed(uint32_t id, uint8_t frontend) {
  std::lock_guard lock(mutex_);
  const uint64_t first = stream_of(id, frontend, Kind{});
  erase_unnamed(first, first + 256);
}

void Submissions::erase_unnamed(uint64_t first, uint64_t end) {
  for (auto* numbers : {&unnamed_, &groups_}) numbers->erase(numbers->lower_bound(first), numbers->lower_bound(end));
}

std::string Submissions::name_group(uint32_t set, uint8_t frontend, Kind kind) {
  std::lock_guard lock(mutex_);
  return "grouped_" + unnamed_prefix(kind) + std::to_string(groups_[stream_of(set, frontend, kind)]++);
}

void Submissions::remove_set(uint32_t id) {
  std::lock_guard lock(mutex_);
  sets_.erase(id);
}

std::map<uint32_t, std::vector<int>> Submissions::sets() const {
  std::lock_guard lock(mutex_);
  return sets_;
}

void Submissions::expect(size_t operations) {
  std::lock_guard lock(mutex_);
  expected_ += operations;
}

void Submissions::release(const std::vector<Operation*>& operations) {
  std::lock_guard lock(mutex_);
  bool reported = false;
  for (Operation* op : operations) {
    if (!op) continue;
    // True if the completion is reported to the program, not to the engine itself.
    const bool tells = op->on_done && !op->carries;
    if (tells && !reported) ++fence_;
    reported |= tells;
    forget_on_device(*op);
    if (!op->scheduled || op->on_device) forget_name(*op);
    if (!op->scheduled) continue;
    op->scheduled = false;
    // Tell the cursor, unless the operation's schedule has ended. Device operations can complete after their schedule.
    if (cursor_ && op->schedule == cursor_->schedule().id) cursor_->finish(op->entry);
  }
}

std::vector<OperationPtr> Submissions::end(Status why) {
  std::lock_guard lock(mutex_);
  std::vector<OperationPtr> out;
  if (ended_.ok()) ended_ = std::move(why);
  out.swap(queue_);
  for (OperationPtr& op : assembly_.take_all()) out.push_back(std::move(op));
  for (OperationPtr& op : take_outstanding()) out.push_back(std::move(op));
  in_flight_.clear();
  queued_.store(0, std::memory_order_seq_cst);
  return out;
}

Status Submissions::ended() const {
  std::lock_guard lock(mutex_);
  return ended_;
}

}  // namespace hvd
