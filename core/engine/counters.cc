#include "engine/counters.h"

namespace hvd {

Counted Counters::read() const {
  Counted out;
#define HVD_READ(name) out.name = name##_.get();
  HVD_COUNTERS(HVD_READ)
#undef HVD_READ
  return out;
}

void Counters::requested(std::span<const Request>) { announcements_.add(1); }
void Counters::decided(std::span<const Response> decided) { negotiated_.add(decided.size()); }
void Counters::agreed(std::span<const Response> agreed) { responses_.add(agreed.size()); }
void Counters::started(const Execution& execution) { bytes_.add(execution.bytes); }
void Counters::failed(const Response&) { errors_.add(1); }
void Counters::schedule_begun(const Schedule&) { schedules_.add(1); }
void Counters::bucket_done(const Schedule::Bucket&) { scheduled_.add(1); }
void Counters::schedule_ended(const Schedule&, uint64_t) { revocations_.add(1); }
void Counters::worked(uint64_t nanoseconds) { control_ns_.add(nanoseconds); }

void Counters::finished(const Execution& execution, const Status& status) {
  if (!status.ok()) return;
  const size_t n = execution.operations.size();
  operations_.add(n);
  if (n > 1) fused_.add(n);
}

}  // namespace hvd
