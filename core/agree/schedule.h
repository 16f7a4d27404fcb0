// Steady state without negotiation. Training repeats the same tensors step after step. Once the coordinator has seen
// the same list of operations twice, it proposes the list as a schedule, which all ranks adopt at the same place in the
// order of operations. From then on a bucket (one fused operation) starts once its tensors have been submitted on every
// rank. Buckets start in the schedule's order, and no message describes them. A rank that deviates revokes the
// schedule, and all ranks return to negotiation (engine/schedule_sync.h).
//
// A schedule goes through these steps:
//   1. On rank 0, the ScheduleDetector sees two equal periods in the decisions. make_schedule() builds the schedule,
//      which is sent in its place in the order of decisions.
//   2. On each rank, decode() reads it, and a ScheduleCursor follows it bucket after bucket and round after round.
//   3. A rank that deviates revokes it. The detector then waits before it proposes the next one, and waits longer if
//      schedules do not last.
//
// This file defines a schedule, its encoding and its construction. The coordinator detects repetition
// (schedule_detector.h), and every rank follows a schedule with a cursor (schedule_cursor.h). None of this does I/O or
// starts threads.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "agree/fuse.h"
#include "agree/request.h"

namespace hvd {

// One operation of the schedule. Requests can differ between ranks (in the first dimension of an allgather), so each
// rank keeps its own. Everything that is equal on all ranks is in the parts of the bucket.
struct ScheduleEntry {
  uint32_t set = 0;
  Kind kind = Kind::allreduce;
  std::string name;  // name of the operation when it was negotiated
  bool unnamed = false;
  uint8_t frontend = 0;
};

// Operations in a fixed order that all ranks repeat without negotiation, grouped into buckets.
struct Schedule {
  uint64_t id = 0;
  // Unit of execution, which starts as a whole: one response, or all responses of a group that needs several. A rank
  // never leaves the schedule in the middle of a bucket.
  struct Bucket {
    std::vector<Response> parts;  // Parts of one process set, executed one after the other.
    std::vector<uint32_t> entries;  // Indices into Schedule::entries, in the order of the parts' names.
    uint32_t set() const { return parts.front().set; }
  };
  std::vector<ScheduleEntry> entries;
  std::vector<Bucket> buckets;
};
// Append the encoded schedule to `out`. decode() returns false if encode() cannot have written the bytes.
void encode(const Schedule& schedule, std::string* out);
bool decode(const std::string& bytes, Schedule* out);

// Build a schedule from the operations of one period, in their order.
Schedule make_schedule(uint64_t id, std::vector<Ready> period, const FuseOptions& options);

}  // namespace hvd
