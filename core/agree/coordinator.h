// Coordinator on rank 0. It turns the requests of all ranks into one order of operations that every rank follows, and
// detects schedules in that order. It holds no links: the driver sends the messages that it returns.
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
  // `world` is the number of ranks, `labels[r]` names rank r in messages, and `cache_capacity` is the maximum number of
  // operations in a schedule (0 disables schedules).
  Coordinator(int world, std::vector<std::string> labels, FuseOptions options, size_t cache_capacity);

  // Process requests of a rank. Requests of a past epoch are ignored, because their rank sends them again; those of a
  // future epoch are kept for later.
  void add_requests(int rank, uint64_t epoch, std::vector<Request> requests, double now);
  void settled(int rank, uint64_t epoch) { settled_[rank] = epoch; }

  // Return the next responses for all ranks. If a schedule is adopted, that is the last response, and epoch() has
  // advanced.
  std::vector<Response> decide();

  uint64_t epoch() const { return epoch_; }
  // Return from a schedule to negotiation after the schedule has run `rounds` times.
  void fall_back(uint64_t rounds, double now);

  // Set the fusion threshold of later decisions and schedules, and the tuning (Tuning::values) that all ranks adopt with
  // the next schedule. The end of a schedule that is left for this reason does not count as a deviation.
  void retune(size_t fusion_threshold, std::vector<int64_t> tuning, bool leaves_schedule) {
    options_.threshold = fusion_threshold;
    tuning_ = std::move(tuning);
    retuned_ = leaves_schedule;
  }

  // Record a rank's position in the running schedule (only used with several nodes). Return true if `go` has advanced.
  bool on_ready(int rank, uint64_t id, uint64_t position, uint64_t* go);
  // Handle a rank that leaves the schedule. Return true for the first such rank; the caller must then broadcast
  // `final`.
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
  // State of the running schedule; the source of the GoUpTo and Revoked messages.
  std::vector<std::vector<int>> members_;
  std::vector<uint64_t> positions_;
  uint64_t go_ = 0;
  size_t ready_ = 0;  // Number of ranks, counted from the first member, that are known to be ready for the bucket at go_.
  size_t operations_ = 0;  // Number of operations in the schedule.
  bool revoked_ = false;
  bool retuned_ = false;  // True while the schedule is being left because of retune().
  std::vector<int64_t> tuning_;  // Tuning that schedules carry; empty before retune() is called.
};

// Return a hash that is equal for two ready operations if they count as the same operation in consecutive steps.
uint64_t identity_of(const Ready& ready);

}  // namespace hvd
