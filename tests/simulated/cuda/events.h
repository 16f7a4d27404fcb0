// Events: numbers of records, and which of these are done.
#pragma once

#include "driver.h"
#include "races.h"

namespace simcuda {

// Lies in shared memory when processes share the event. Record g is done when done[g % kRecords] has reached g: records that were made on
// different streams may end in another order.
struct EventState {
  static constexpr uint64_t kRecords = 64;
  std::atomic<uint64_t> recorded, done[kRecords];
  std::atomic<uint32_t> destroyed;

  bool is_done(uint64_t record) const { return record == 0 || done[record % kRecords] >= record; }
  void finish(uint64_t record);
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  bool destroyed = false, imported = false;
  std::shared_ptr<EventState> state;
  uint64_t offset = 0;  // of an interprocess event's state in this process's file
  // What happened before each record that was made here, by its number.
  struct Known {
    uint64_t record = 0;
    Clock clock;
  };
  Known known[EventState::kRecords];
  // Of the last record, when that was made on a capturing stream.
  std::shared_ptr<Capture> captured;

  bool shared() const { return flags & kEventInterprocess; }
  // What is known to have happened once that record is done.
  void learn(uint64_t record, Clock& clock) const;
};

// The event of a handle; null with `error` set.
Event* find_event(CUevent handle, int& error);

Event* new_event(Context* context, unsigned flags, std::shared_ptr<EventState> state);

}  // namespace simcuda
