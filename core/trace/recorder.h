// The flight recorder is an Observer that keeps the most recent operations of a rank's engine in a ring buffer. It is
// always on. trace/dump.h reads it after a failure, on a signal, or on request. It also provides statistics about
// steps.
//
// The thread that runs the progress loop writes an entry in about 50 ns, and any thread can read entries at the same time. The version of
// an entry reveals whether it was overwritten while it was being read.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ticks.h"
#include "engine/observer.h"

namespace hvd {

class FlightRecorder final : public Observer {
 public:
  enum class What : uint8_t {
    // Event: this rank requested the operation. Not recorded for operations in a schedule.
    requested,
    // Event: the operation was executed, fused with `count` - 1 other operations.
    carried_out,
    // Event: the execution failed, and the job is over.
    broke_off,
    // Event: the operation failed on all ranks, with the error in Response::error.
    failed,
    // Event: the ranks began to follow a schedule with `count` buckets.
    schedule_begun,
    schedule_ended,
    // Event: the job ended. `name` holds the beginning of the reason.
    ended,
  };
  // Entry of the flight recorder. Fields that do not apply to `what` are 0.
  struct Entry {
    static constexpr size_t kName = 87, kShape = 4;
    // Sequence number of the entry on this rank, starting at 0.
    uint64_t number;
    // Begin and end of the event in ticks, which differ only for executed operations (carried_out and broke_off).
    uint64_t begin, end;
    uint64_t bytes;
    // Id of the schedule that contains the operation, or 0 for a negotiated operation.
    uint64_t schedule;
    // For executed operations (carried_out and broke_off): number of earlier operations of the process set. Equal on all ranks of the set.
    uint64_t position;
    // Leading dimensions of the tensor's shape, up to kShape of them.
    std::array<int64_t, kShape> shape;
    uint32_t set, count;
    What what;
    Kind kind;
    DType dtype;
    ReduceOp op;
    uint8_t frontend, dimensions;
    bool guarded;
    // Length of `name`. A name of length kName may have been truncated.
    uint8_t name_length;
    std::array<char, kName + 1> name;

    std::string text() const { return {name.data(), name_length}; }
  };

  // Keep the last `entries` entries. `entries` must be at least 2.
  explicit FlightRecorder(size_t entries);

  // Return at most `most` entries, oldest first. Entries that are currently being written are not included. Callable
  // from any thread at any time.
  std::vector<Entry> last(size_t most) const;
  TickScale::Line line() const { return scale_.line(); }

  void requested(std::span<const Request>) override;
  void started(const Execution&) override;
  void finished(const Execution&, const Status&) override;
  void failed(const Response&) override;
  void schedule_begun(const Schedule&) override;
  void schedule_ended(const Schedule&, uint64_t) override;
  void ended(const Status&) override;

 private:
  static_assert(sizeof(Entry) % sizeof(uint64_t) == 0);
  using Words = std::array<uint64_t, sizeof(Entry) / sizeof(uint64_t)>;
  struct Slot {
    // Version of the slot: 2 * (number + 1) for a complete entry, or an odd number while the entry is being written.
    std::atomic<uint64_t> version{0};
    std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words{};
  };
  void write(Entry& entry);
  bool read(uint64_t number, Entry* entry) const;

  TickScale scale_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> next_{0};
  uint64_t started_ = 0, schedule_ = 0;
  // Number of executed operations in each process set.
  std::map<uint32_t, uint64_t> executed_;
};

const char* name_of(FlightRecorder::What what);

}  // namespace hvd
