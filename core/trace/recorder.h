// Flight recorder: an Observer that keeps the last operations of a rank's engine in a ring buffer, which is always on.
// It is read after a failure (fatal error, signal, or on request: trace/dump.h), and for statistics about steps.
//
// The thread that drives the engine writes it, in about 50 ns per entry, and any thread may read it at the same time.
// Each entry has a version that shows whether it was overwritten while being read.
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
    requested,       // This rank is ready for it; not recorded for operations of a schedule.
    carried_out,     // It was executed, together with count - 1 others.
    broke_off,       // Its execution failed and the job is over.
    failed,          // It failed on all ranks, see Response::error.
    schedule_begun,  // A schedule with `count` buckets has begun.
    schedule_ended,
    ended,           // the job ended; `name` is the beginning of the reason
  };
  // Fields that do not apply to `what` are 0.
  struct Entry {
    static constexpr size_t kName = 87, kShape = 4;
    uint64_t number;      // Index of the entry on this rank, from 0.
    uint64_t begin, end;  // Times in ticks; equal except for carried_out and broke_off.
    uint64_t bytes;
    uint64_t schedule;    // Id of the schedule; 0 for negotiated operations.
    // For carried_out and broke_off, the number of earlier operations of the process set, equal on all ranks of the
    // set.
    uint64_t position;
    std::array<int64_t, kShape> shape;  // first dimensions of the tensor
    uint32_t set, count;
    What what;
    Kind kind;
    DType dtype;
    ReduceOp op;
    uint8_t frontend, dimensions;
    bool guarded;
    uint8_t name_length;  // equal to kName if the name may have been cut
    std::array<char, kName + 1> name;

    std::string text() const { return {name.data(), name_length}; }
  };

  // Keep the last `entries` entries, which must be at least 2.
  explicit FlightRecorder(size_t entries);

  // Return at most `most` entries, oldest first. Entries that are being written are left out. Callable from any thread
  // at any time.
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
    std::atomic<uint64_t> version{0};  // 2 * (number + 1) of the entry in this slot; odd while it is being written
    std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words{};
  };
  void write(Entry& entry);
  bool read(uint64_t number, Entry* entry) const;

  TickScale scale_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> next_{0};
  uint64_t started_ = 0, schedule_ = 0;
  std::map<uint32_t, uint64_t> executed_;  // number of executed operations in each process set
};

const char* name_of(FlightRecorder::What what);

}  // namespace hvd
