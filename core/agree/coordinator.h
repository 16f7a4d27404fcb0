// Coordinator on rank 0: turns the requests of all ranks into one order of operations that every rank follows, and
// finds schedules in it. Holds no links; the driver sends what it returns.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "agree/negotiate.h"
#include "agree/schedule.h"
#include "agree/schedule_detector.h"

namespace hvd {

class Coordinator {
 public:
  // `world`: number of ranks. `labels`: by rank, for messages. `cache_capacity`: maximum operations of a schedule; 0:
  // no schedules.
  Coordinator(int world, std::vector<std::string> labels, FuseOptions options, size_t cache_capacity);

  // Process requests of a rank. Requests of a past epoch are ignored (their rank sends them again); those of a future
  // epoch are kept.
  void add_requests(int rank, uint64_t epoch, std::vector<Request> requests, double now);
  void settled(int rank, uint64_t epoch) { settled_[rank] = epoch; }

  // Return the next responses for all ranks. When a schedule is adopted it is the last response, and epoch() has
  // advanced.
  std::vector<Response> decide();

  uint64_t epoch() const { return epoch_; }
  // Return from a schedule to negotiation; `rounds`: how often the schedule ran.
  void fall_back(uint64_t rounds, double now);

  // Several nodes: record a rank's position in the running schedule. Return true if `go` has advanced.
  bool on_ready(int rank, uint64_t id, uint64_t position, uint64_t* go);
  // Handle a rank that wants to leave the schedule. Return true the first time; `final` must then be broadcast.
  bool on_revoke(uint64_t id, uint64_t* final);

  Negotiator& negotiator() { return negotiator_; }
  const Negotiator& negotiator() const { return negotiator_; }

 private:
  bool propose(std::vector<Response>* responses);
  bool everybody_settled() const;

  struct Early {
    int rank;
    uint64_t epoch;
    std::vector<Request> requests;
  };
  Negotiator negotiator_;
  FuseOptions options_;
  ScheduleDetector detector_;
  uint64_t epoch_ = 0;
  uint64_t last_schedule_ = 0;
  std::vector<uint64_t> settled_;
  std::deque<Early> early_;
  // State of the running schedule, used for GoUpTo and Revoked.
  std::vector<std::vector<int>> members_;
  std::vector<uint64_t> positions_;
  uint64_t go_ = 0;
  size_t ready_ = 0;  // the first ready_ members of the bucket at go_ are known to be ready for it
  size_t operations_ = 0;  // number of operations in the schedule
  bool revoked_ = false;
};

// Return a hash of what must be equal on all ranks for an operation to count as the same in the next step.
uint64_t identity_of(const Ready& ready);

}  // namespace hvd
