// Converter of operation events to a Chrome trace. It does no I/O and receives times as arguments. docs/timeline.md
// describes the format.
//
// Each tensor is a process of the trace, with its index as the pid; pid 0 is the rank itself. Events of a tensor are nested slices (phases
// B and E). NEGOTIATE_<OP> has an instant (phase X) for each rank that becomes ready, named by the rank. <OP> contains QUEUE and one slice
// per activity, and ends with dtype and shape. Pid 0 has schedules, their rounds, steps, cycle marks and clock offsets.
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

// Tensors that belong to one timeline event: those of a response, or those requested by a message.
struct TimelineTensors {
  struct One {
    std::string name;
    std::vector<int64_t> dimensions;
    // Dimensions as text (shape_string()).
    std::string shape;
    uint32_t set;
    uint8_t frontend;
    Kind kind;
    ReduceOp op;
    DType dtype;
    // True if the tensor at `index` in the response equals this one, including its shape.
    bool same(const Response& response, size_t index) const;
  };
  std::vector<One> all;
  // Pids of the tensors, each of which is a process in the trace. Valid while TimelineText::first_ equals pids_since.
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
    // Time on the monotonic clock, in nanoseconds, at which the trace starts.
    int64_t start_ns = 0;
    // Time at which the trace starts, in microseconds since 1970.
    int64_t epoch_us = 0;
    int64_t process = 0;
  };
  // Maximum number of tensors to remember. Unnamed tensors always count as new.
  static constexpr size_t kMaxKnown = 1 << 16;

  explicit TimelineText(About about) : about_(std::move(about)) {}

  // Each function appends JSON values, each followed by ",\n", to *out. `at` is in nanoseconds of the monotonic clock. begin() must be
  // called first, and again for each new file. It discards the state of operations in flight.
  void begin(std::string* out);
  void ready(int64_t at, int rank, const TimelineTensors& tensors, std::string* out);
  void agreed(int64_t at, const TimelineTensors& tensors, std::string* out);
  void failed(int64_t at, const TimelineTensors& tensors, std::string_view why, std::string* out);

  struct Started {
    uint64_t number = 0, bytes = 0, schedule = 0;
    std::string algorithm;
    // Time at which this rank submitted each tensor; 0 if unknown. The list can be empty.
    std::vector<int64_t> submitted;
  };
  void started(int64_t at, const Started& about, const TimelineTensors& tensors, std::string* out);
  void entered(int64_t at, Phase phase, const TimelineTensors& tensors, std::string* out);
  void finished(int64_t at, bool good, const TimelineTensors& tensors, std::string* out);

  void schedule_begun(int64_t at, uint64_t id, size_t buckets, size_t tensors, std::string* out);
  void schedule_round(int64_t at, uint64_t round, std::string* out);
  void schedule_ended(int64_t at, std::string* out);
  // Start a step and end the previous one.
  void step(int64_t at, int64_t number, std::string* out);
  void cycle(int64_t at, std::string* out);
  // Append the offset from this rank's monotonic clock to rank 0's, and its maximum error.
  void clock(int64_t at, int64_t offset_ns, int64_t error_ns, std::string* out);
  // Append an event for a gap in the recording, and discard the state of operations in flight.
  void paused(int64_t at, std::string* out);
  // Append an event that reports `events` missing events, and discard the state of operations in flight.
  void lost(int64_t at, uint64_t events, std::string* out);
  void ended(int64_t at, std::string_view why, std::string* out);

 private:
  struct State {
    // Time of the last event. Timestamps of a tensor never decrease.
    int64_t last = 0;
    // Time at which the ranks agreed on the operation, or 0 if it is unknown.
    int64_t agreed = 0;
    bool negotiating = false, running = false, active = false;
    // True if the running operation uses MPI.
    bool mpi = false;
  };
  uint32_t pid_of(const TimelineTensors::One& tensor, std::string* out);
  const std::vector<uint32_t>& pids_of(const TimelineTensors& tensors, std::string* out);
  State& state(uint32_t pid) { return states_[pid - first_]; }
  // Append one event. `rest` holds further JSON members, each preceded by a comma.
  void event(char phase, uint32_t pid, int64_t at, std::string_view name, std::string_view rest, std::string* out) const;
  void own(char phase, int thread, int64_t at, std::string_view name, std::string_view rest, std::string* out) const;
  void close_open(int64_t at, std::string* out);
  void leave_negotiation(State& s, uint32_t pid, int64_t at, std::string* out);

  std::string_view time(int64_t at) const;

  const About about_;
  // Time whose text is in written_. It is reused, because consecutive events often have the same time.
  mutable int64_t written_at_ = -1;
  mutable std::string written_;
  // Pid of each known tensor, keyed by key_of() and the kind. The trace shows each tensor as a process.
  std::unordered_map<std::string, uint32_t> known_;
  // State of each known tensor, indexed by its pid minus first_.
  std::vector<State> states_;
  uint32_t first_ = 1;
  bool in_schedule_ = false, in_round_ = false, in_step_ = false;
};

// Return the operation's name in the trace, for example ALLREDUCE or ADASUM.
const char* timeline_name(Kind kind, ReduceOp op);

}  // namespace hvd
