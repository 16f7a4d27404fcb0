// Coordinator on rank 0. It merges the requests of all ranks into a single order of operations that every rank follows.
// If operations repeat, it proposes them as a schedule, which ranks follow without further requests (agree/schedule.h).
// It owns no connections: the driver sends the messages that the coordinator returns.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "agree/negotiate.h"
#include "agree/schedule.h"
#include "agree/schedule_detector.h"

namespace hvd {

class Coordinator {
 public:
  // `world` is the number of ranks. `labels[r]` names rank r in error messages. `cache_capacity` is the maximum number
  // of operations in a schedule; 0 disables schedules.
  Coordinator(int world, std::vector<std::string> labels, FuseOptions options, size_t cache_capacity);

  // Process requests from `rank`. An epoch number counts how often the job has switched between negotiation and a
  // schedule. Requests with an old epoch are ignored, because the rank will send them again. Requests with a future
  // epoch are kept until that epoch starts.
  void add_requests(int rank, uint64_t epoch, std::vector<Request> requests, double now);
  void settled(int rank, uint64_t epoch) { settled_[rank] = epoch; }

  // Return the next responses for all ranks. If the coordinator adopts a schedule, the last response carries it and
  // epoch() advances.
  std::vector<Response> decide();

  uint64_t epoch() const { return epoch_; }
  // Return to negotiation after the schedule has run `rounds` rounds.
  void fall_back(uint64_t rounds, double now);

  // Set the fusion threshold for future responses, and the size thresholds (Tuning::values) that all ranks adopt with the next schedule.
  // `leaves_schedule` means that the current schedule ends for this reason, not because a program deviated from it.
  void retune(size_t fusion_threshold, std::vector<int64_t> tuning, bool leaves_schedule) {
    options_.threshold = fusion_threshold;
    tuning_ = std::move(tuning);
    retuned_ = leaves_schedule;
  }

  // Record a rank's position in the running schedule of a job with several nodes. `go` receives the lowest position of all ranks. Return
  // true if it has advanced.
  bool on_ready(int rank, uint64_t id, uint64_t position, uint64_t* go);
  // Record that a rank leaves the schedule. Return true if this rank is the first to leave. In this case, the caller
  // must broadcast `final`, the position at which all ranks leave the schedule.
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
  // Ranks that take part in each bucket of the running schedule (members_), and the position of each rank in the schedule (positions_).
  std::vector<std::vector<int>> members_;
  std::vector<uint64_t> positions_;
  uint64_t go_ = 0;
  // Number of ranks counted as ready for the bucket at position go_.
  size_t ready_ = 0;
  // Number of operations in the running schedule.
  size_t operations_ = 0;
  bool revoked_ = false;
  // True while the ranks leave a schedule to apply new size thresholds (retune()).
  bool retuned_ = false;
  // Size thresholds to send with the next schedule. Empty before retune() is called.
  std::vector<int64_t> tuning_;
};

// Return a hash that identifies an operation across steps: equal operations in consecutive steps have equal hashes.
uint64_t identity_of(const Ready& ready);

}  // namespace hvd
