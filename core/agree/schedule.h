// Steady state without negotiation. Training repeats the same tensors step after step. Once the coordinator has seen
// the same list twice it proposes it as a schedule, which all ranks adopt at the same place in the order of operations.
// From then on a bucket (one fused operation) starts once its tensors have been submitted on every rank, in the
// schedule's order, without any message that describes them. A rank that deviates revokes the schedule, and all ranks
// return to negotiation (engine/schedule_sync.h).
//
//   rank 0:    decisions -> ScheduleDetector: two equal periods? -> make_schedule() -> sent in its place in the order of decisions
//   each rank: decode() -> ScheduleCursor: bucket after bucket, round after round -> revoked by a rank that deviates
//                 ^                                                                  |
//                 +------ the detector waits, longer where schedules do not last <---+
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
