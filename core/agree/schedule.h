// Steady state without negotiation. Training repeats: the same tensors, step after step. Once the coordinator has seen the same list
// twice it proposes it as a schedule; all ranks adopt it at the same place of the order of operations. From then on a bucket (one
// fused operation) starts when its tensors have been submitted everywhere, in the schedule's order, without any message that describes
// them. A rank that does something else revokes the schedule and everybody goes back to negotiation (engine/steady.h).
//
//   rank 0:    decisions -> ScheduleDetector: two equal periods? -> make_schedule() -> sent in its place in the order of decisions
//   each rank: decode() -> ScheduleCursor: bucket after bucket, round after round -> revoked, by whoever does something else
//                 ^                                                                  |
//                 +------ the detector waits, longer where schedules do not last <---+
//
// This is what a schedule is, how it travels and how it is made. The coordinator finds it in what repeats (schedule_detector.h), every rank
// follows it with a cursor (schedule_cursor.h). All of it is pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "agree/fuse.h"
#include "agree/request.h"

namespace hvd {

// One rank's view of one operation of the schedule. Requests can differ between ranks (allgather's first dimension), so every rank
// keeps its own; what is common is in the bucket's parts.
struct ScheduleEntry {
  uint32_t set = 0;
  Kind kind = Kind::allreduce;
  std::string name;  // of the operation when it was negotiated
  bool unnamed = false;
  uint8_t face = 0;
};

struct Schedule {
  uint64_t id = 0;
  // What starts, and is left, as a whole: one response, or all those of a group that needs several.
  struct Bucket {
    std::vector<Response> parts;  // of one process set; carried out one after the other
    std::vector<uint32_t> entries;  // indices into `entries`, in the order of the parts' names
    uint32_t set() const { return parts.front().set; }
  };
  std::vector<ScheduleEntry> entries;
  std::vector<Bucket> buckets;
};
void encode(const Schedule& schedule, std::string* out);
bool decode(const std::string& bytes, Schedule* out);

// Of one period, in order.
Schedule make_schedule(uint64_t id, std::vector<Ready> period, const FuseOptions& options);

}  // namespace hvd
