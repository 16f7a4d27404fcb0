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
    uint64_t number;      // 0 is the first one, whose beginning nobody saw, so these are from 1
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

  explicit StepMeter(std::shared_ptr<const Waits> waits) : waits_(std::move(waits)) {}

  // A step ends here; the first call begins the first one. Any thread.
  void step(uint64_t data_ns) { mark(data_ns, false); }
  // As long as step() has not been called, steps end where a schedule comes round.
  void find() { finding_.store(true); }
  // The finished steps that have not been taken, oldest first. None: the next one that ends puts `go_on` into the mailbox.
  std::vector<Step> take();
  void wake(std::shared_ptr<Mailbox> mailbox, std::string go_on);
  // Called with the number of each step that begins, by whoever marks it. One listener; empty: nobody.
  void listen(std::function<void(uint64_t)> begun);
  // How many steps have been marked so far. Any thread.
  uint64_t made() const { return made_.load(std::memory_order_relaxed); }
  TickScale::Line line() const { return scale_.line(); }

  void started(const Execution&) override { started_ = ticks(); }
  void finished(const Execution&, const Status&) override;
  void schedule_begun(const Schedule& schedule) override;
  void bucket_done(const Schedule::Bucket& bucket) override;
  void schedule_ended(const Schedule&, uint64_t) override { last_ = nullptr; }

 private:
  // What has been counted up to a moment.
  struct Reading {
    uint64_t at, blocked, collectives, hidden, bytes, moved, operations, tensors, unattended;
  };
  Reading read() const;
  void mark(uint64_t data_ns, bool found);

  const std::shared_ptr<const Waits> waits_;
  TickScale scale_;
  uint64_t started_ = 0;                     // the driver's, as what follows
  const Schedule::Bucket* last_ = nullptr;  // of the schedule that runs
  Counter collectives_, hidden_, bytes_, moved_, operations_, tensors_;
  std::atomic<bool> finding_{false};
  std::atomic<uint64_t> made_{0};

  std::mutex mutex_;
  bool told_ = false, begun_ = false, asleep_ = true;  // under it, as all that follows
  Reading before_{};
  uint64_t number_ = 1;
  size_t first_ = 0;         // in steps_, once that is full
  std::vector<Step> steps_;
  std::shared_ptr<Mailbox> mailbox_;
  std::string go_on_;
  std::function<void(uint64_t)> listener_;
};

}  // namespace hvd
