// Where callers and the driver meet: the queue of new operations, the names in flight, the process sets for checks at call time, the
// cursor of a running schedule (submissions_schedule.cc), and the reason why the engine has ended. Everything under one short lock.
//
// Where an operation is that nobody has announced:
//
//   submit -> [assembly_: its group is not complete here] -> queue_  -> take()         -> the driver's, announced next
//                                                         -> cursor_ -> take_bucket()  -> the driver's, carried out next
//
// Which of the two is the state of this object:
//
//                   begin_schedule(): what is queued goes          something is submitted that the schedule does not expect, or
//   negotiating ----------------------------------> following ----------------------------------------------> deviated
//   (no cursor_)    into cursor_, as long as it fits  (cursor_)    nudge() finds what cannot be complete (stuck_)   (deviated_)
//        ^                                                                                                          |
//        +----------------------------------------------------------------------------------------------------------+
//            end_schedule(), also from following when another rank leaves: cursor_ and queue_ go to the driver, announced next
//
// queue_ takes what comes when negotiating or deviated. From each, end() once and for all: ended_ refuses what comes later.
//
// Whoever waits in vain for something in cursor_ or assembly_ nudges it on towards the announcement, after which rank 0 knows who is
// missing.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "agree/schedule_cursor.h"
#include "engine/assembly.h"
#include "engine/operation.h"

namespace hvd {

class Submissions {
 public:
  Submissions(int rank, int size);

  // Checks and accepts an operation. `wake`: the driver has something to do now.
  Status submit(const OperationPtr& op, bool* wake);
  // The same for one that was submitted before with the same request. What a running schedule has matched once costs no comparison and
  // no allocation here.
  Status submit_again(const OperationPtr& op, bool* wake);
  // The program is about to wait (or looks whether it has to): what comes later does not belong to what came before.
  void fence();

  // ---- driver ---------------------------------------------------------------------------------------------------------------
  // Has a schedule begun with operations that nobody waits for? Answers true once; they are to be looked after then.
  bool must_watch() { return must_watch_.load(std::memory_order_relaxed) && must_watch_.exchange(false); }
  // New operations that are not part of a schedule.
  std::vector<OperationPtr> take();
  // Are there accepted operations on devices that are not done? Of any set; of this one.
  bool on_devices() const;
  bool on_devices(uint32_t set) const;
  bool empty() const { return queued_.load(std::memory_order_seq_cst) == 0; }
  Clock::time_point last_submission() const;
  // The oldest of what waits for the running schedule to end or go on, null if nothing does.
  OperationPtr oldest_unannounced() const;
  // So many operations of the engine's own (Operation::carries) are going to be submitted without the program's doing.
  void expect(size_t operations);
  // These are about to be completed: their names may be used again.
  void release(const std::vector<Operation*>& operations);

  // The name of the next unnamed group of operations of this kind: groups, like unnamed operations, are matched by the order in which the
  // ranks of a set make them.
  std::string name_group(uint32_t set, uint8_t face, Kind kind);

  // An unnamed operation that this rank never submitted ended as an error; if its number is not used yet, it never will be.
  void skip_unnamed(const Response& response, const std::string& name);

  void add_set(uint32_t id, std::vector<int> ranks);
  void remove_set(uint32_t id);
  // Numbers a face's unnamed operations and groups in the set from 0 again: ranks have not submitted equally many, but none is under way.
  void restart_unnamed(uint32_t id, uint8_t face);
  std::map<uint32_t, std::vector<int>> sets() const;

  // Follows a schedule from now on; `unanswered` are operations (in order of submission) that were announced in vain.
  void begin_schedule(std::unique_ptr<ScheduleCursor> cursor, const std::vector<OperationPtr>& unanswered);
  // Back to negotiation; returns everything that still has to be announced, in order of submission.
  std::vector<OperationPtr> end_schedule();
  struct Progress {
    uint64_t ready = 0, executed = 0;
    bool deviated = false, stuck = false;
  };
  Progress progress() const;
  // The next bucket's operations (null where this rank takes no part), and who keeps them alive from now on.
  size_t buckets() const;  // of the running schedule
  const Schedule::Bucket* take_bucket(std::vector<Operation*>* operations, std::vector<OperationPtr>* keep);
  // The same, but the operations stay in the schedule: it may still end before them.
  const Schedule::Bucket* peek_bucket(std::vector<Operation*>* operations) const;
  // A caller has been waiting for `op` for a while: if its bucket, or its group, is incomplete here, waiting longer cannot help. Of one on
  // a device that goes for the engine's own operations that carry it out, once no more of them are to come.
  // `impatient`: it has waited for so long that others may never come, which only negotiation can tell (see Stall). True: wake the driver.
  bool nudge(const Operation& op, bool impatient);
  // The same for operations that nobody waits for, by their age and by how long the program has submitted nothing. `waiting`: there are, or
  // were until now, such operations in the schedule or in incomplete groups, so look again.
  bool nudge_unattended(double patience, double impatience, bool* waiting);

  // No more operations; `why` goes to later callers. Returns what is queued or in the schedule. Only the first call counts.
  std::vector<OperationPtr> end(Status why);
  Status ended() const;
  // How many operations have failed because of the end, or were refused since.
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
  Assembly assembly_;
  std::vector<OperationPtr> queue_;
  std::atomic<size_t> queued_{0};
  std::map<uint32_t, size_t> on_devices_;  // by set
  size_t expected_ = 0;                    // see expect()
  // Names of operations that no schedule has, and of those on devices from their start on, which may end after their schedule. The cursor
  // knows the others.
  std::unordered_set<std::string> in_flight_;
  std::map<uint32_t, std::vector<int>> sets_;
  std::map<uint64_t, uint64_t> unnamed_, groups_;  // by stream_of(): next number
  uint64_t next_sequence_ = 0;
  uint64_t fence_ = 0;
  Clock::time_point last_{};
  std::unique_ptr<ScheduleCursor> cursor_;
  std::vector<void*> tokens_;  // of the bucket being taken
  bool deviated_ = false, stuck_ = false;
  std::atomic<bool> must_watch_{false};
  Status ended_;
  const std::shared_ptr<std::atomic<uint64_t>> failures_ = std::make_shared<std::atomic<uint64_t>>(0);  // outlives the engine
};

}  // namespace hvd
