// Counters of what an engine has done since its start: an Observer. A counter is a line of the table below and a line in counters.cc that
// counts; callers, Python's Engine.stats() among them, go through the table.
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

// Their values at one moment.
struct Counted {
#define HVD_COUNTED(name) uint64_t name = 0;
  HVD_COUNTERS(HVD_COUNTED)
#undef HVD_COUNTED
};

// see(name, value) for each, in the table's order.
template <class See>
void for_each(const Counted& counted, See see) {
#define HVD_SEEN(name) see(#name, counted.name);
  HVD_COUNTERS(HVD_SEEN)
#undef HVD_SEEN
}

class Counters final : public Observer {
 public:
  // Any thread.
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
  // Written by whoever drives, never two at once.
#define HVD_COUNTER(name) Counter name##_;
  HVD_COUNTERS(HVD_COUNTER)
#undef HVD_COUNTER
};

}  // namespace hvd
