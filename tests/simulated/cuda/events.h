// Events: numbers of records, and which of these are done.
#pragma once

#include "driver.h"
#include "races.h"

namespace simcuda {

// Record g is done when done[g % kRecords] has reached g: records on different streams may finish in another order.
struct EventState {
  static constexpr uint64_t kRecords = 64;
  std::atomic<uint64_t> recorded, done[kRecords];

  bool is_done(uint64_t record) const { return record == 0 || done[record % kRecords] >= record; }
  void finish(uint64_t record);
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  bool destroyed = false;
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
  // Work that happened before each record made here, by record number.
  struct Known {
    uint64_t record = 0;
    Clock clock;
  };
  Known known[EventState::kRecords];
  // Of the last record, if it was made on a capturing stream.
  std::shared_ptr<Capture> captured;

  // Adds to `clock` the work known to be complete once that record is done.
  void learn(uint64_t record, Clock& clock) const;
};

// Returns the event of a handle; null with `error` set.
Event* find_event(CUevent handle, int& error);

Event* new_event(Context* context, unsigned flags);

}  // namespace simcuda
