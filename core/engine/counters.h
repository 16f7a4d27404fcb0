// Counters of an engine's work, implemented as an Observer. To add a counter, add a line to the table below and update it in counters.cc.
// Engine.stats() in Python and other readers iterate over the table.
#pragma once
#include <cstdint>

#include "base/counter.h"
#include "engine/observer.h"

namespace hvd {

#define HVD_COUNTERS(X)                                                  \
  X(operations)    /* tensors executed */                                \
  X(fused)         /* those of them that were fused with others */       \
  X(bytes)         /* of this rank's operations, see Execution::bytes */ \
  X(announcements) /* request messages sent to the coordinator */        \
  X(negotiated)    /* rank 0: responses decided by the coordinator */    \
  X(scheduled)     /* buckets executed by a schedule */                  \
  X(schedules)     /* schedules adopted */                               \
  X(revocations)   /* schedules left */                                  \
  X(period_bytes)  /* bytes of the tensors in the last schedule */       \
  X(period_hash)   /* hash of their names, kinds, dtypes and shapes */   \
  X(errors)        /* responses that fail operations */                  \
  X(responses)     /* responses received from the coordinator */         \
  X(control_ns)    /* CPU time outside collectives, see Observer::worked() */

// Snapshot of all counters.
struct Counted {
#define HVD_COUNTED(name) uint64_t name = 0;
  HVD_COUNTERS(HVD_COUNTED)
#undef HVD_COUNTED
};

// Call see(name, value) for each counter, in the order of HVD_COUNTERS.
template <class See>
void for_each(const Counted& counted, See see) {
#define HVD_SEEN(name) see(#name, counted.name);
  HVD_COUNTERS(HVD_SEEN)
#undef HVD_SEEN
}

class Counters final : public Observer {
 public:
  // Return the current values. Callable from any thread.
  Counted read() const;

  void requested(std::span<const Request>) override;
  void decided(std::span<const Response>) override;
  void agreed(std::span<const Response>) override;
  void started(const Execution&) override;
  void finished(const Execution&, const Status&) override;
  void failed(const Response&) override;
  void schedule_begun(const Schedule&) override;
  void bucket_done(const Schedule::Bucket&) override;
  void schedule_ended(const Schedule&, uint64_t) override;
  void worked(uint64_t nanoseconds) override;

 private:
  // The event callbacks below run on the thread that runs the progress loop, one at a time.
#define HVD_COUNTER(name) Counter name##_;
  HVD_COUNTERS(HVD_COUNTER)
#undef HVD_COUNTER
};

}  // namespace hvd
