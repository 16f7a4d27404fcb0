// Counters of an engine's work since its start, as an Observer. To add a counter, add a line to the table below and the
// counting code in counters.cc; Engine.stats() in Python and other readers iterate over the table.
#pragma once
#include <cstdint>

#include "base/counter.h"
#include "engine/observer.h"

namespace hvd {

#define HVD_COUNTERS(X)                                                        \
  X(operations)    /* carried out, tensor by tensor */                         \
  X(fused)         /* of them those that shared an operation with others */    \
  X(bytes)         /* that this rank's operations had, see Execution::bytes */ \
  X(announcements) /* messages to the coordinator that describe tensors */     \
  X(negotiated)    /* rank 0: responses that the coordinator has decided */    \
  X(scheduled)     /* buckets carried out by a schedule */                     \
  X(schedules)     /* adopted */                                               \
  X(revocations)   /* schedules left */                                        \
  X(errors)        /* responses that fail operations */                        \
  X(responses)     /* heard from the coordinator */                            \
  X(control_ns)    /* CPU time beside collectives, in turns in which something moved: Observer::worked() */

// Snapshot of the counters.
struct Counted {
#define HVD_COUNTED(name) uint64_t name = 0;
  HVD_COUNTERS(HVD_COUNTED)
#undef HVD_COUNTED
};

// Call see(name, value) for each counter, in the table's order.
template <class See>
void for_each(const Counted& counted, See see) {
#define HVD_SEEN(name) see(#name, counted.name);
  HVD_COUNTERS(HVD_SEEN)
#undef HVD_SEEN
}

class Counters final : public Observer {
 public:
  // Callable from any thread.
  Counted read() const;

  void announced(std::span<const Request>) override;
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
  // Written by the thread that drives; never two at once.
#define HVD_COUNTER(name) Counter name##_;
  HVD_COUNTERS(HVD_COUNTER)
#undef HVD_COUNTER
};

}  // namespace hvd
