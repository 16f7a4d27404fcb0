// The flight recorder: what a rank's engine has done last, in a ring that is always on. An Observer. It is read when something has gone
// wrong (after a fatal error, on a signal, when the program asks: trace/dump.h), and for figures about steps.
//
// Written by whoever drives the engine, an entry in some 50 ns; read by any thread meanwhile: each entry carries a version that says
// whether it was overwritten while it was read.
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
    announced,       // this rank is ready for it; not of operations that a schedule takes
    carried_out,     // together with count - 1 others
    broke_off,       // likewise, but it failed and the job is over
    failed,          // on all ranks, see Response::error
    schedule_begun,  // `count` buckets
    schedule_ended,
    ended,           // the job; `name` is the beginning of why
  };
  // What does not concern `what` is 0.
  struct Entry {
    static constexpr size_t kName = 87, kShape = 4;
    uint64_t number;      // of this rank's entries, from 0
    uint64_t begin, end;  // ticks; the same but for carried_out and broke_off
    uint64_t bytes;
    uint64_t schedule;    // 0: negotiated
    uint64_t position;    // of carried_out and broke_off: how many its process set has had before, the same on all ranks of the set
    std::array<int64_t, kShape> shape;  // the first dimensions
    uint32_t set, count;
    What what;
    Kind kind;
    DType dtype;
    ReduceOp op;
    uint8_t face, dimensions;
    bool guarded;
    uint8_t name_length;  // kName: there may have been more
    std::array<char, kName + 1> name;

    std::string text() const { return {name.data(), name_length}; }
  };

  // Keeps the last `entries` of them, at least 2.
  explicit FlightRecorder(size_t entries);

  // Any thread, at any time. At most so many, oldest first; those that were being written are left out.
  std::vector<Entry> last(size_t most) const;
  TickScale::Line line() const { return scale_.line(); }

  void announced(std::span<const Request>) override;
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
    std::atomic<uint64_t> version{0};  // 2 * (number + 1) of the entry that it holds; odd: being written
    std::array<std::atomic<uint64_t>, std::tuple_size_v<Words>> words{};
  };
  void write(Entry& entry);
  bool read(uint64_t number, Entry* entry) const;

  TickScale scale_;
  std::vector<Slot> slots_;
  std::atomic<uint64_t> next_{0};
  uint64_t started_ = 0, schedule_ = 0;
  std::map<uint32_t, uint64_t> executed_;  // by process set
};

const char* name_of(FlightRecorder::What what);

}  // namespace hvd
