// Schedules allow execution without negotiation. Training repeats the same tensors step after step. Once the
// coordinator has seen the same list of operations twice, it proposes the list as a schedule. All ranks adopt it at the
// same place in the order of operations. From then on, a bucket (one fused operation) starts once every rank has
// submitted its tensors. Buckets start in the schedule's order, without messages that describe them. A rank that
// deviates revokes the schedule, and all ranks return to negotiation (engine/schedule_sync.h).
//
// A schedule goes through these steps:
//   1. On rank 0, the ScheduleDetector sees the same list of operations twice in a row. make_schedule() builds the
//      schedule. Rank 0 sends it as the next response, so that all ranks adopt it after the same operation.
//   2. On each rank, decode() reads the schedule. A ScheduleCursor follows it bucket by bucket, round after round.
//   3. A rank that deviates revokes the schedule. The detector then waits before it proposes the next one, and waits
//      longer if schedules do not last.
//
// This file defines a schedule, its encoding and its construction. ScheduleDetector (schedule_detector.h) detects
// repetition on the coordinator, and every rank follows a schedule with a ScheduleCursor (schedule_cursor.h). These
// classes do no I/O and start no threads.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "agree/fuse.h"
#include "agree/request.h"

namespace hvd {

// One operation of a schedule. The bucket's responses hold everything that is equal on all ranks. Each rank keeps its
// own request, because requests can differ in the first dimension of an allgather.
struct ScheduleEntry {
  uint32_t set = 0;
  Kind kind = Kind::allreduce;
  std::string name;
  bool unnamed = false;
  uint8_t frontend = 0;
};

// A fixed sequence of operations, grouped into buckets, that all ranks repeat without negotiation.
struct Schedule {
  uint64_t id = 0;
  // Unit of execution that starts as a whole: one response, or all responses of a group that needs several. A rank
  // never leaves a schedule in the middle of a bucket.
  struct Bucket {
    // Responses to execute one after another, all for the same process set.
    std::vector<Response> parts;
    // Indices into Schedule::entries, in the order of the names in `parts`.
    std::vector<uint32_t> entries;
    uint32_t set() const { return parts.front().set; }
  };
  std::vector<ScheduleEntry> entries;
  std::vector<Bucket> buckets;
};
// Append the encoded schedule to `out`. decode() returns false for bytes that encode() could not have produced.
void encode(const Schedule& schedule, std::string* out);
bool decode(const std::string& bytes, Schedule* out);

// Build a schedule from the operations of one period, in their order.
Schedule make_schedule(uint64_t id, std::vector<Ready> period, const FuseOptions& options);

}  // namespace hvd
