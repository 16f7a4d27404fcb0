// What happens to operations as events of a Chrome trace: pure, times come as arguments. docs/timeline.md says what they mean.
//
// A process of the trace is a tensor (its pid is the tensor's index), pid 0 is the rank itself. On each tensor there are
//   B NEGOTIATE_<OP>  an X named by rank for each rank that is ready  E
//   B <OP>  B QUEUE E  B <activity> E ...  E with dtype and shape
// and on pid 0 schedules, their rounds, steps, marks of cycles and what is known of the clock.
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

// What one response, or one message, is about.
struct TimelineTensors {
  struct One {
    std::string name;
    std::vector<int64_t> dimensions;
    std::string shape;  // the same as shape_string() writes them
    uint32_t set;
    uint8_t face;
    Kind kind;
    ReduceOp op;
    DType dtype;
    // Is the response's tensor of this index the same, shape and all?
    bool same(const Response& response, size_t index) const;
  };
  std::vector<One> all;
  // TimelineText's: their indices, and since when they are right.
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
    int64_t start_ns = 0;  // on the monotonic clock; times in the trace count from here
    int64_t epoch_us = 0;  // the same moment, since 1970
    int64_t process = 0;
  };
  // Tensors that are known by their index at a time; unnamed ones are new each time.
  static constexpr size_t kMostKnown = 1 << 16;

  explicit TimelineText(About about) : about_(std::move(about)) {}

  // Each appends elements followed by ",\n" to *out. `at`: ns on the monotonic clock.
  void begin(std::string* out);  // first, and again when a new file begins: nothing is under way then
  void ready(int64_t at, int rank, const TimelineTensors& tensors, std::string* out);
  void agreed(int64_t at, const TimelineTensors& tensors, std::string* out);
  void failed(int64_t at, const TimelineTensors& tensors, std::string_view why, std::string* out);

  struct Started {
    uint64_t number = 0, bytes = 0, schedule = 0;
    std::string algorithm;
    // When this rank has submitted each tensor, 0: that is not known. May be empty.
    std::vector<int64_t> submitted;
  };
  void started(int64_t at, const Started& about, const TimelineTensors& tensors, std::string* out);
  void entered(int64_t at, Phase phase, const TimelineTensors& tensors, std::string* out);
  void finished(int64_t at, bool good, const TimelineTensors& tensors, std::string* out);

  void schedule_begun(int64_t at, uint64_t id, size_t buckets, size_t tensors, std::string* out);
  void schedule_round(int64_t at, uint64_t round, std::string* out);
  void schedule_ended(int64_t at, std::string* out);
  void step(int64_t at, int64_t number, std::string* out);  // has begun; the one before is over
  void cycle(int64_t at, std::string* out);
  // This rank's monotonic clock and rank 0's: what to add to this one, and how far that may be off.
  void clock(int64_t at, int64_t offset_ns, int64_t error_ns, std::string* out);
  // What follows is not taken down for a while: nothing is under way as far as is known.
  void paused(int64_t at, std::string* out);
  // So many events are missing here: nothing is under way as far as is known.
  void lost(int64_t at, uint64_t events, std::string* out);
  void ended(int64_t at, std::string_view why, std::string* out);

 private:
  struct State {
    int64_t last = 0;    // no event of a tensor is earlier than the one before
    int64_t agreed = 0;  // 0: not agreed, or known no more
    bool negotiating = false, running = false, active = false;
    bool mpi = false;  // what runs goes through it
  };
  uint32_t pid_of(const TimelineTensors::One& tensor, std::string* out);
  const std::vector<uint32_t>& pids_of(const TimelineTensors& tensors, std::string* out);
  State& state(uint32_t pid) { return states_[pid - first_]; }
  // `rest`: further members, each after a comma.
  void event(char phase, uint32_t pid, int64_t at, std::string_view name, std::string_view rest, std::string* out) const;
  void own(char phase, int thread, int64_t at, std::string_view name, std::string_view rest, std::string* out) const;
  void close_open(int64_t at, std::string* out);
  void leave_negotiation(State& s, uint32_t pid, int64_t at, std::string* out);

  std::string_view time(int64_t at) const;

  const About about_;
  // Many events in a row have one time.
  mutable int64_t written_at_ = -1;
  mutable std::string written_;
  std::unordered_map<std::string, uint32_t> known_;  // pid by key_of() and kind
  std::vector<State> states_;                        // of pids from first_ on
  uint32_t first_ = 1;
  bool in_schedule_ = false, in_round_ = false, in_step_ = false;
};

// ALLREDUCE, ADASUM, ...
const char* timeline_name(Kind kind, ReduceOp op);

}  // namespace hvd
