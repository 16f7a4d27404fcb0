// Converts events of operations to a Chrome trace. It does no I/O and receives times as arguments. docs/timeline.md
// describes the format.
//
// Each tensor is a process of the trace, with its index as the pid; pid 0 is the rank itself. Events of a tensor are
// nested slices (phases B and E): NEGOTIATE_<OP>, with an instant (phase X) named by rank for each rank that is ready,
// then <OP>, which contains QUEUE and one slice per activity and ends with dtype and shape. The process with pid 0 has
// schedules, their rounds, steps, cycle marks and clock offsets.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/observer.h"

namespace hvd {

// The tensors of one response or message.
struct TimelineTensors {
  struct One {
    std::string name;
    std::vector<int64_t> dimensions;
    std::string shape;  // dimensions in the format of shape_string()
    uint32_t set;
    uint8_t frontend;
    Kind kind;
    ReduceOp op;
    DType dtype;
    // True if the response's tensor at this index is the same as this one, including its shape.
    bool same(const Response& response, size_t index) const;
  };
  std::vector<One> all;
  // Used by TimelineText: the pids of the tensors, and the value of first_ for which they are valid.
  mutable std::vector<uint32_t> pids;
  mutable uint32_t pids_since = 0;

  static std::shared_ptr<const TimelineTensors> of(const Response& response);
  static std::shared_ptr<const TimelineTensors> of(std::span<const Request> requests);
  size_t bytes() const;
};
using TimelineTensorsPtr = std::shared_ptr<const TimelineTensors>;

class TimelineText {
 public:
  struct About {
    int rank = 0, size = 1;
    std::string host;
    int64_t start_ns = 0;  // Time on the monotonic clock, in ns, from which the trace's times count.
    int64_t epoch_us = 0;  // The same moment in us since 1970.
    int64_t process = 0;
  };
  // Maximum number of tensors that are known by name at a time. Unnamed tensors are always new.
  static constexpr size_t kMaxKnown = 1 << 16;

  explicit TimelineText(About about) : about_(std::move(about)) {}

  // Each function appends elements, each followed by ",\n", to *out. `at` is in ns on the monotonic clock.
  void begin(std::string* out);  // Call this first, and again for each new file. No operation is in flight afterwards.
  void ready(int64_t at, int rank, const TimelineTensors& tensors, std::string* out);
  void agreed(int64_t at, const TimelineTensors& tensors, std::string* out);
  void failed(int64_t at, const TimelineTensors& tensors, std::string_view why, std::string* out);

  struct Started {
    uint64_t number = 0, bytes = 0, schedule = 0;
    std::string algorithm;
    // Time at which this rank submitted each tensor, or 0 if unknown. May be empty.
    std::vector<int64_t> submitted;
  };
  void started(int64_t at, const Started& about, const TimelineTensors& tensors, std::string* out);
  void entered(int64_t at, Phase phase, const TimelineTensors& tensors, std::string* out);
  void finished(int64_t at, bool good, const TimelineTensors& tensors, std::string* out);

  void schedule_begun(int64_t at, uint64_t id, size_t buckets, size_t tensors, std::string* out);
  void schedule_round(int64_t at, uint64_t round, std::string* out);
  void schedule_ended(int64_t at, std::string* out);
  void step(int64_t at, int64_t number, std::string* out);  // the step ends the step before it
  void cycle(int64_t at, std::string* out);
  // Record the offset from this rank's monotonic clock to rank 0's, and its maximum error.
  void clock(int64_t at, int64_t offset_ns, int64_t error_ns, std::string* out);
  // Record that recording pauses. Afterwards no operation is known to be in flight.
  void paused(int64_t at, std::string* out);
  // Record that `events` events are missing here. Afterwards no operation is known to be in flight.
  void lost(int64_t at, uint64_t events, std::string* out);
  void ended(int64_t at, std::string_view why, std::string* out);

 private:
  struct State {
    int64_t last = 0;    // Time of the last event; timestamps of a tensor never decrease.
    int64_t agreed = 0;  // Time at which the operation was agreed on; 0 if that is not yet known or no longer known.
    bool negotiating = false, running = false, active = false;
    bool mpi = false;  // true if the running operation uses MPI
  };
  uint32_t pid_of(const TimelineTensors::One& tensor, std::string* out);
  const std::vector<uint32_t>& pids_of(const TimelineTensors& tensors, std::string* out);
  State& state(uint32_t pid) { return states_[pid - first_]; }
  // `rest` holds further JSON members, each preceded by a comma.
  void event(char phase, uint32_t pid, int64_t at, std::string_view name, std::string_view rest, std::string* out) const;
  void own(char phase, int thread, int64_t at, std::string_view name, std::string_view rest, std::string* out) const;
  void close_open(int64_t at, std::string* out);
  void leave_negotiation(State& s, uint32_t pid, int64_t at, std::string* out);

  std::string_view time(int64_t at) const;

  const About about_;
  // The formatted time is cached, because consecutive events often share it.
  mutable int64_t written_at_ = -1;
  mutable std::string written_;
  std::unordered_map<std::string, uint32_t> known_;  // Maps key_of() and the kind to the pid.
  std::vector<State> states_;                        // States of the pids from first_ on.
  uint32_t first_ = 1;
  bool in_schedule_ = false, in_round_ = false, in_step_ = false;
};

// Return the operation's name in the trace, for example ALLREDUCE or ADASUM.
const char* timeline_name(Kind kind, ReduceOp op);

}  // namespace hvd
