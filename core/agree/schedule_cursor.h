// Position of this rank in a schedule. The cursor matches submissions to schedule entries and counts the buckets for
// which this rank is ready. It does no I/O and starts no threads.
//
// A submission goes through these steps:
//   1. find() returns the submission's entry, if the schedule has one.
//   2. offer() stores the submission in the slot of the entry. If the schedule expects a different request, the rank
//      leaves the schedule.
//   3. take() removes the submission together with the rest of its bucket, and the bucket runs.
//   4. finish() marks the submission as executed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/schedule.h"

namespace hvd {

// Not thread-safe.
class ScheduleCursor {
 public:
  // `requests` holds this rank's request for each entry, taken from the last negotiated step, or null if this rank
  // takes no part in the entry.
  ScheduleCursor(std::shared_ptr<const Schedule> schedule, std::vector<const Request*> requests);

  const Schedule& schedule() const { return *schedule_; }

  // Return the entry that matches a submission's kind and name, or kNoEntry.
  static constexpr uint32_t kNoEntry = UINT32_MAX;
  uint32_t find(const Request& request) const;
  // True if this rank has passed a submission for this entry to offer() but has not yet called finish() for it. An
  // unnamed entry can have several operations in flight.
  bool busy(uint32_t entry) const;
  // True if the name of this entry occurs several times in a round.
  bool repeated(uint32_t entry) const { return slots_[entry].stream != nullptr; }
  // Add a submission for the entry that find() returned. Return false, and store nothing, if the schedule expects a
  // different request. `token` identifies the submission to the caller; the cursor does not use it. `completed` is set
  // to true if this submission completed a bucket.
  bool offer(uint32_t entry, const Request& request, void* token, bool* completed);
  // Add a submission without comparing its request, because an equal request was already accepted for this entry. Must
  // not be used for entries whose name occurs several times in a round (repeated()).
  void offer_again(uint32_t entry, void* token, bool* completed);

  // Return the number of leading buckets that this rank has submitted completely.
  uint64_t ready() const { return ready_; }
  uint64_t executed() const { return executed_; }
  // Take the next bucket. `tokens` receives the token of each entry, or null for an entry in which this rank takes no
  // part.
  const Schedule::Bucket& take(std::vector<void*>* tokens);
  // Mark the current operation of this entry as executed.
  void finish(uint32_t entry) { slots_[entry].running = false; }

  // Return the same bucket and tokens as take(), but do not remove them.
  const Schedule::Bucket& peek(std::vector<void*>* tokens) const;

  // True if the bucket of this operation lacks other submissions of this rank. The operation then cannot run while its caller waits, so the
  // caller must leave the schedule.
  bool stuck(const void* token) const;
  // Return the tokens of all submissions that offer() has accepted and take() has not yet removed.
  std::vector<void*> outstanding() const;

 private:
  // Entries that only the order of submission distinguishes: unnamed entries of one kind, or entries with the same name.
  struct Stream {
    // Indices of the entries, in the order in which their operations are submitted.
    std::vector<uint32_t> entries;
    uint64_t seen = 0;
    uint32_t next() const { return entries[seen % entries.size()]; }
    uint32_t previous() const { return entries[(seen + entries.size() - 1) % entries.size()]; }
  };
  struct Slot {
    // Request that the schedule expects for this entry.
    Request request;
    // Tokens of submissions for this entry that have not been executed, one per round. There is rarely more than one.
    std::vector<void*> waiting;
    uint32_t bucket = 0;
    bool own = false;
    // True if a bucket with this entry has been taken but the entry's operation is not finished.
    bool running = false;
    Stream* stream = nullptr;
  };
  void add(uint32_t entry, void* token, bool* completed);
  void advance();
  bool anything_mine() const { return !by_name_.empty() || !unnamed_.empty(); }

  std::shared_ptr<const Schedule> schedule_;
  std::vector<Slot> slots_;
  // Number of operations that this rank still has to submit for each bucket.
  std::vector<uint32_t> missing_;
  // Named entries, keyed by set, frontend and name (make_key()).
  std::unordered_map<std::string, Stream> by_name_;
  // Unnamed entries, keyed by set, frontend and kind (stream_of()).
  std::unordered_map<uint64_t, Stream> unnamed_;
  uint64_t ready_ = 0;
  uint64_t executed_ = 0;
  mutable std::string key_;
};

}  // namespace hvd
