// Rank 0's second job: turning announcements into the one order of operations that everybody follows, and finding schedules in it.
// Holds no links; the driver sends what it returns.
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
  Coordinator(int world, std::vector<std::string> labels, FuseOptions options, size_t cache_capacity);

  // Announcements of an epoch that has passed are void (their ranks announce again), those of one to come are kept.
  void announce(int rank, uint64_t epoch, std::vector<Request> requests, double now);
  void settled(int rank, uint64_t epoch) { settled_[rank] = epoch; }

  // What all ranks are to do next. When a schedule is adopted, the last response says so and epoch() has moved on.
  std::vector<Response> decide();

  uint64_t epoch() const { return epoch_; }
  // Back from a schedule to negotiation; `rounds`: how often it ran.
  void fall_back(uint64_t rounds, double now);

  // Several nodes: positions of ranks in the schedule that runs. Returns true when `go` has moved.
  bool on_ready(int rank, uint64_t id, uint64_t position, uint64_t* go);
  // A rank wants out. True the first time: broadcast `final`.
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
  // The running schedule, for go and revoke.
  std::vector<std::vector<int>> members_;
  std::vector<uint64_t> positions_;
  uint64_t go_ = 0;
  size_t ready_ = 0;  // so many members of the bucket there, the first ones, are known to be ready for it
  size_t operations_ = 0;  // of it
  bool revoked_ = false;
};

// What must repeat for an operation to be the same in the next step, over all ranks.
uint64_t identity_of(const Ready& ready);

}  // namespace hvd
