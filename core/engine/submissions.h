// Interface between callers and the driver. It holds the queue of new operations, the names in flight, the process sets, and the cursor of
// a running schedule (submissions_schedule.cc). It also holds the reason why the engine has shut down. One lock, which is held only
// briefly, guards all of this.
//
// The steps of an operation before its request is sent:
//   1. submit() accepts the operation. While its group is incomplete on this rank, assembly_ holds it.
//   2. Outside a schedule, the operation goes to queue_. take() passes it to the driver, which requests it next.
//   3. In a schedule, the operation goes to cursor_ instead. take_bucket() passes it to the driver, which executes it next.
//
// Three states determine whether an accepted operation goes to queue_ or to cursor_:
//   - negotiating: there is no cursor_, and operations go to queue_. begin_schedule() creates cursor_, moves the queued
//     operations that fit into it, and the state becomes following.
//   - following: operations go to cursor_. The state becomes deviated after a submission that the schedule does not
//     expect, or when nudge() finds an incomplete bucket (stuck_). When another rank leaves, end_schedule() ends this state.
//   - deviated: deviated_ is set, and operations go to queue_. end_schedule() passes the operations in cursor_ and
//     queue_ to the driver, which requests them next, and the state becomes negotiating.
//
// After end(), which can be called in any state, all submissions fail with the error ended_.
//
// A caller that waits for an operation in a schedule (cursor_) or in an incomplete group (assembly_) calls nudge(). If the operation cannot
// complete there, it is negotiated instead, so that rank 0 can report the missing ranks.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "agree/schedule_cursor.h"
#include "engine/group_assembly.h"
#include "engine/operation.h"

namespace hvd {

class Submissions {
 public:
  Submissions(int rank, int size);

  // Check and accept an operation. `wake` is set to true if the driver now has something to do.
  Status submit(const OperationPtr& op, bool* wake);
  // Accept an operation that was submitted before with the same request. A request that has already matched the running schedule is not
  // compared again, and no memory is allocated.
  Status submit_again(const OperationPtr& op, bool* wake);
  // Keep earlier submissions from being fused with later ones, because the program is about to wait or poll.
  void fence();

  // ---- Functions called by the driver -------------------------------------------------------------------------------

  // Return true once after a schedule has received operations that no caller waits for. The watchdog must then check them.
  bool must_watch() { return must_watch_.load(std::memory_order_relaxed) && must_watch_.exchange(false); }
  // Take the new operations that are not part of a schedule.
  std::vector<OperationPtr> take();
  // True if any device operations are unfinished, either in `set` or in any process set.
  bool on_devices() const;
  bool on_devices(uint32_t set) const;
  bool empty() const { return queued_.load(std::memory_order_seq_cst) == 0; }
  Clock::time_point last_submission() const;
  // Return the oldest operation that rank 0 does not know, because it is new or part of the running schedule. Return null if there is none.
  OperationPtr oldest_unannounced() const;
  // Announce how many host operations the engine will submit to carry out device operations (Operation::carries).
  void expect(size_t operations);
  // Free the names of operations that are about to complete, so that the names can be used again.
  void release(const std::vector<Operation*>& operations);

  // Return the name of the next unnamed group of the given kind. Ranks match unnamed groups, like unnamed operations,
  // by the order of their creation in the process set.
  std::string name_group(uint32_t set, uint8_t frontend, Kind kind);

  // Skip the number of an unnamed operation that failed before this rank submitted it. Does nothing if the number was used before.
  void skip_unnamed(const Response& response, const std::string& name);

  void add_set(uint32_t id, std::vector<int> ranks);
  void remove_set(uint32_t id);
  // Number a frontend's unnamed operations and groups in the set from 0 again. Ranks can have submitted different numbers of operations,
  // but none may be in flight.
  void restart_unnamed(uint32_t id, uint8_t frontend);
  std::map<uint32_t, std::vector<int>> sets() const;

  // Start to follow a schedule. `unanswered` are the requested operations that have no response yet, in the order of
  // submission.
  void begin_schedule(std::unique_ptr<ScheduleCursor> cursor, const std::vector<OperationPtr>& unanswered);
  // Switch from the schedule back to negotiation. Return all operations that still have to be requested, in the order
  // of submission.
  std::vector<OperationPtr> end_schedule();
  // This rank's progress in the running schedule: it has submitted all buckets below position `ready`, and take_bucket() has taken all
  // buckets below position `executed`.
  struct Progress {
    uint64_t ready = 0, executed = 0;
    bool deviated = false, stuck = false;
  };
  // Return the progress in the schedule, without the lock, because the driver calls this several times per operation.
  Progress progress() const;
  size_t buckets() const;
  // Take the operations of the next bucket, with null for entries in which this rank takes no part. `keep` becomes their owner.
  const Schedule::Bucket* take_bucket(std::vector<Operation*>* operations, std::vector<OperationPtr>* keep);
  // Get the operations of the next bucket, but leave them in the schedule, which can end before this rank executes the bucket.
  const Schedule::Bucket* peek_bucket(std::vector<Operation*>* operations);
  // Check an operation for which a caller has waited for some time. If its bucket or group is incomplete on this rank, waiting longer
  // cannot help: leave the schedule or release the group. For a device operation, check the host operations that carry it out, once all of
  // them are submitted. `impatient` means that other ranks might never submit the operation, which only negotiation can detect. Return true
  // if the driver must be woken.
  bool nudge(const Operation& op, bool impatient);
  // Check unattended operations, for which no caller waits, as nudge() does. Their age and the time since the last submission are compared
  // with `patience` and `impatience` (seconds). `waiting` is set to true if the schedule or an incomplete group has unattended operations,
  // so that the watchdog must check again. Return true if the driver must be woken.
  bool nudge_unattended(double patience, double impatience, bool* waiting);

  // Stop accepting operations: later submissions fail with `why` of the first call. Return the operations that are queued or in the
  // schedule.
  std::vector<OperationPtr> end(Status why);
  Status ended() const;
  // Return the number of operations that failed because the engine shut down, or were rejected afterwards.
  std::shared_ptr<const std::atomic<uint64_t>> failures() const { return failures_; }
  void count_failures(size_t operations) { failures_->fetch_add(operations, std::memory_order_relaxed); }

 private:
  Status check(Request& q) const;
  Status check_name(const Request& q, uint32_t entry) const;
  Status submit_locked(const OperationPtr& op, bool* wake, std::vector<OperationPtr>* refused);
  Status join_group(const OperationPtr& op, Status status, std::vector<OperationPtr>* refused, bool* wake);
  bool release_part(const Operation& op);
  void enter(const OperationPtr& op, uint32_t entry, bool* wake);
  void forget_name(const Operation& op);
  void count_on_device(const Operation& op);
  void forget_on_device(const Operation& op);
  bool offer(const OperationPtr& op, uint32_t entry, bool* completed);
  void keep(const OperationPtr& op, uint32_t entry);
  OperationPtr let_go(void* token);
  bool in_vain(const Operation& op) const;
  std::vector<OperationPtr> take_outstanding();
  void erase_unnamed(uint64_t first_stream, uint64_t end_stream);

  const int rank_;
  mutable std::mutex mutex_;
  GroupAssembly assembly_;
  std::vector<OperationPtr> queue_;
  std::atomic<size_t> queued_{0};
  // Number of unfinished device operations, for each process set.
  std::map<uint32_t, size_t> on_devices_;
  // Number of operations announced by expect() and not submitted yet.
  size_t expected_ = 0;
  // Names of operations in flight that cursor_ does not track: operations outside the schedule, and launched device operations. The latter
  // can still be in flight when the schedule ends.
  std::unordered_set<std::string> in_flight_;
  std::map<uint32_t, std::vector<int>> sets_;
  // Next sequence numbers of unnamed operations and of unnamed groups in each stream, keyed by stream_of().
  std::map<uint64_t, uint64_t> unnamed_, groups_;
  uint64_t next_sequence_ = 0;
  std::atomic<uint64_t> fence_{0};
  Clock::time_point last_{};
  // Cursor of the running schedule. Only the driver changes this pointer.
  std::unique_ptr<ScheduleCursor> cursor_;
  // Memory for the operations of a bucket, reused by take_bucket() and peek_bucket(). The cursor stores pointers to Operation as void*.
  std::vector<void*> tokens_;
  // Copy of cursor_->ready() that progress() reads without the lock.
  std::atomic<uint64_t> ready_{0};
  std::atomic<bool> deviated_{false}, stuck_{false};
  std::atomic<bool> must_watch_{false};
  Status ended_;
  // Number of failed operations. The counter is shared with observers, so that it outlives the engine.
  const std::shared_ptr<std::atomic<uint64_t>> failures_ = std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace hvd
