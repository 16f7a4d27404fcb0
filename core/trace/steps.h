// Step meter: observer that measures training steps on this rank: how long callers were blocked, how long collectives took, and how many
// bytes they processed. A step ends when step() is called or, for programs that only run compiled graphs, when a schedule completes a
// round.
//
// Measuring steps costs two clock readings per collective and a short lock per step. It costs nothing while the engine
// is idle.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/counter.h"
#include "base/ticks.h"
#include "engine/observer.h"
#include "engine/waits.h"
#include "trace/mailbox.h"

namespace hvd {

class StepMeter final : public Observer {
 public:
  // One step, measured from the end of the previous step. Times are in ticks unless a comment gives another unit.
  struct Step {
    // Index of the step. Step 0 is the first one, whose start was not observed.
    uint64_t number;
    // Time in ticks at which the step ended.
    uint64_t end;
    // Duration of the step in ticks.
    uint64_t time;
    // Nanoseconds that the program waited for data, as reported by the program.
    uint64_t data;
    // Time in ticks that callers spent waiting for operations (see Waits).
    uint64_t blocked;
    // Ticks that this rank spent in collectives.
    uint64_t collectives;
    // Ticks that this rank spent in collectives while no caller waited.
    uint64_t hidden;
    // Total size in bytes of the tensors in collectives (see Execution::bytes).
    uint64_t bytes;
    // Minimum number of bytes to send over this rank's link, with any algorithm.
    uint64_t moved;
    uint64_t operations, tensors;
    // Time in ticks at which a caller last began to wait for an operation, or submitted one for which no caller calls wait().
    uint64_t arrival;
    // Number of operations without a call of wait(), for which the program's waiting time is unknown.
    uint64_t unattended;
  };
  // Maximum number of steps kept for take(). If there are more, the oldest are dropped.
  static constexpr size_t kMax = 4096;
  // Maximum number of operations that are counted as candidates for the end of a step.
  static constexpr size_t kMaxNames = 1 << 12;

  explicit StepMeter(std::shared_ptr<const Waits> waits) : waits_(std::move(waits)) {}

  // Mark the end of a step and the start of the next one. The first call only starts the first step. Callable from any
  // thread.
  void step(uint64_t data_ns) { mark(data_ns, false); }
  // Detect steps until step() is called: each ends with the last operation of the schedule. While operations are negotiated, steps are
  // counted but not measured.
  void find() { finding_.store(true); }
  // Take the finished steps, oldest first. If there are none, the end of the next step is announced by the message `go_on` in the mailbox
  // of wake().
  std::vector<Step> take();
  void wake(std::shared_ptr<Mailbox> mailbox, std::string go_on);
  // Call `begun` with the number of each step that starts, on the thread that marks it. Only one function can be set; an empty one removes
  // it.
  void listen(std::function<void(uint64_t)> begun);
  // Return the number of steps so far, measured or not. Callable from any thread.
  uint64_t made() const { return made_.load(std::memory_order_relaxed); }
  TickScale::Line line() const { return scale_.line(); }

  void started(const Execution&) override { started_ = ticks(); }
  void finished(const Execution&, const Status&) override;
  void schedule_begun(const Schedule& schedule) override;
  void bucket_done(const Schedule::Bucket& bucket) override;
  void schedule_ended(const Schedule&, uint64_t) override {
    scheduled_ = false;
    last_ = nullptr;
  }

 private:
  // Snapshot of the cumulative counters. A step is the difference between two snapshots.
  struct Reading {
    uint64_t at, blocked, collectives, hidden, bytes, moved, operations, tensors, unattended;
  };
  Reading read() const;
  void mark(uint64_t data_ns, bool found);
  // If steps are detected (find()), count negotiated operations.
  void negotiated(const std::vector<std::string>& names);
  // Count `steps` steps whose times were not measured.
  void count(uint64_t steps);

  const std::shared_ptr<const Waits> waits_;
  TickScale scale_;
  // Start of the current execution. Only the driver uses this and the following members.
  uint64_t started_ = 0;
  bool scheduled_ = false;
  // Bucket of the schedule whose completion ends a step.
  const Schedule::Bucket* last_ = nullptr;
  // Name of the operation that ends a step. Empty before the first schedule.
  std::string last_name_;
  // Name of the last operation of a schedule that lacks the operation last_name_. It becomes the end of a step once it has been executed
  // more often than that one.
  std::string rival_;
  // Number of executions of other operations, any of which can turn out to end a step.
  std::unordered_map<std::string, uint64_t> executed_;
  Counter collectives_, hidden_, bytes_, moved_, operations_, tensors_;
  std::atomic<bool> finding_{false};
  std::atomic<uint64_t> made_{0};

  std::mutex mutex_;
  // All members below are guarded by mutex_.
  bool explicit_ = false, begun_ = false, asleep_ = true;
  Reading before_{};
  uint64_t ended_ = 0;
  // Index of the oldest step in steps_, once steps_ is full.
  size_t first_ = 0;
  std::vector<Step> steps_;
  std::shared_ptr<Mailbox> mailbox_;
  std::string go_on_;
  std::function<void(uint64_t)> listener_;
};

}  // namespace hvd
