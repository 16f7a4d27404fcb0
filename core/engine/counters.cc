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
void Counters::bucket_done(const Schedule::Bucket&) { scheduled_.add(1); }
void Counters::schedule_ended(const Schedule&, uint64_t) { revocations_.add(1); }
void Counters::worked(uint64_t nanoseconds) { control_ns_.add(nanoseconds); }

// Compute a hash of the schedule's operations. It is the same in every process and does not depend on the order or the
// fusion of the operations.
void Counters::schedule_begun(const Schedule& schedule) {
  uint64_t bytes = 0, hash = 0;
  for (const Schedule::Bucket& bucket : schedule.buckets) {
    for (const Response& part : bucket.parts) {
      for (size_t i = 0; i < part.names.size(); ++i) {
        // Offset basis of the FNV-1a hash.
        uint64_t elements = 1, h = 14695981039346656037u;
        const auto mix = [&h](uint64_t value) { h = (h ^ value) * 1099511628211u; };
        for (const char c : part.names[i]) mix(static_cast<unsigned char>(c));
        mix(static_cast<uint64_t>(part.kind));
        mix(static_cast<uint64_t>(part.dtype));
        for (const int64_t n : part.shapes[i]) {
          elements *= static_cast<uint64_t>(n);
          mix(static_cast<uint64_t>(n));
        }
        bytes += elements * size_of(part.dtype);
        hash += h;
      }
    }
  }
  period_bytes_.add(bytes - period_bytes_.get());
  period_hash_.add(hash - period_hash_.get());
  schedules_.add(1);
}

void Counters::finished(const Execution& execution, const Status& status) {
  if (!status.ok()) return;
  const size_t n = execution.operations.size();
  operations_.add(n);
  if (n > 1) fused_.add(n);
}

}  // namespace hvd
