// Where the steps of training spend their time on this rank: what callers were blocked, what collectives took, bytes. An Observer; steps
// end where step() says so, or, for programs that only run compiled graphs, where a schedule has come round.
//
// Costs two readings of the clock for each collective and a short lock for each step. An idle engine costs nothing.
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
  // Between the end of the step before and its own. Times are ticks.
  struct Step {
    uint64_t number;      // how many steps ended before it; 0 is the first one, whose beginning nobody saw
    uint64_t end;         // when
    uint64_t time;        // its length
    uint64_t data;        // ns that the program waited for its data, as it says
    uint64_t blocked;     // callers waited for operations (Waits)
    uint64_t collectives; // within collectives
    uint64_t hidden;      // of that, while no caller waited
    uint64_t bytes;       // of tensors, Execution::bytes
    uint64_t moved;       // that had to cross this rank's links, whatever the algorithm
    uint64_t operations, tensors;
    uint64_t arrival;     // when a caller last began to wait, or left an operation unattended
    uint64_t unattended;  // operations whose waiting is not seen
  };
  // Steps that nobody takes are lost beyond these, oldest first.
  static constexpr size_t kMost = 4096;
  // Names of operations that are counted until one of them turns out to be the last one of a step.
  static constexpr size_t kMostNames = 1 << 12;

  explicit StepMeter(std::shared_ptr<const Waits> waits) : waits_(std::move(waits)) {}

  // A step ends here; the first call begins the first one. Any thread.
  void step(uint64_t data_ns) { mark(data_ns, false); }
  // As long as step() has not been called, a step ends with each operation that is the last one of the schedule: counted from the
  // first one on, also where the operations are negotiated, measured where the schedule runs.
  void find() { finding_.store(true); }
  // The finished steps that have not been taken, oldest first. None: the next one that ends puts `go_on` into the mailbox.
  std::vector<Step> take();
  void wake(std::shared_ptr<Mailbox> mailbox, std::string go_on);
  // Called with the number of each step that begins, by whoever marks it. One listener; empty: nobody.
  void listen(std::function<void(uint64_t)> begun);
  // How many steps have ended so far, measured or not. Any thread.
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
  // What has been counted up to a moment.
  struct Reading {
    uint64_t at, blocked, collectives, hidden, bytes, moved, operations, tensors, unattended;
  };
  Reading read() const;
  void mark(uint64_t data_ns, bool found);
  // Counts the negotiated operations of programs whose steps are found.
  void negotiated(const std::vector<std::string>& names);
  // These steps have ended, unmeasured.
  void count(uint64_t steps);

  const std::shared_ptr<const Waits> waits_;
  TickScale scale_;
  uint64_t started_ = 0;                     // the driver's, as what follows
  bool scheduled_ = false;                  // a schedule runs
  const Schedule::Bucket* last_ = nullptr;  // the one of it with which a step ends
  std::string last_name_;                   // the operation with which a step ends; empty before the first schedule
  std::string rival_;                        // the last operation of a schedule without that one
  // Of other operations: how often they came. One of them may turn out to be the last one of a step.
  std::unordered_map<std::string, uint64_t> executed_;
  Counter collectives_, hidden_, bytes_, moved_, operations_, tensors_;
  std::atomic<bool> finding_{false};
  std::atomic<uint64_t> made_{0};

  std::mutex mutex_;
  bool told_ = false, begun_ = false, asleep_ = true;  // under it, as all that follows
  Reading before_{};
  uint64_t ended_ = 0;  // steps
  size_t first_ = 0;         // in steps_, once that is full
  std::vector<Step> steps_;
  std::shared_ptr<Mailbox> mailbox_;
  std::string go_on_;
  std::function<void(uint64_t)> listener_;
};

}  // namespace hvd
