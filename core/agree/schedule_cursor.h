// Position of one rank in a schedule. It matches submissions with entries and knows for how many buckets this rank is
// ready. Does no I/O and starts no threads.
//
// A submission goes through these steps:
//   1. find() returns its entry, if there is one.
//   2. offer() puts it into the slot of the entry, where it waits. If the schedule expects another request, the rank
//      leaves the schedule.
//   3. take() takes it, together with its whole bucket, and it runs.
//   4. finish() marks it as done.
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
  // `requests` holds this rank's request for each entry, taken from the last negotiated step; null where this rank
  // takes no part.
  ScheduleCursor(std::shared_ptr<const Schedule> schedule, std::vector<const Request*> requests);

  const Schedule& schedule() const { return *schedule_; }

  // Return the entry to which a submission of this kind and name belongs, or kNoEntry.
  static constexpr uint32_t kNoEntry = UINT32_MAX;
  uint32_t find(const Request& request) const;
  // True if an operation with this entry's name is in flight, that is offered but not yet passed to finish(). An
  // unnamed entry can be in flight several times.
  bool busy(uint32_t entry) const;
  // True if the name of this entry occurs several times in a round.
  bool repeated(uint32_t entry) const { return slots_[entry].stream != nullptr; }
  // Offer a submission for the entry that find() returned. Return false, and store nothing, if the schedule expects a
  // different request. `token` is opaque. `completed` is set to true if this submission completed a bucket.
  bool offer(uint32_t entry, const Request& request, void* token, bool* completed);
  // Offer an operation whose request was accepted for this entry before; nothing is compared. Not for repeated() names.
  void offer_again(uint32_t entry, void* token, bool* completed);

  // Return the number of consecutive buckets, from the first of the first round, that this rank has submitted
  // completely.
  uint64_t ready() const { return ready_; }
  uint64_t executed() const { return executed_; }
  // Take the next bucket. `tokens` receives the tokens of its entries in order, with null where this rank takes no
  // part.
  const Schedule::Bucket& take(std::vector<void*>* tokens);
  // Mark the operation taken for this entry as executed.
  void finish(uint32_t entry) { slots_[entry].running = false; }

  // Return what take() would return, without taking it.
  const Schedule::Bucket& peek(std::vector<void*>* tokens) const;

  // True if this operation waits in the schedule and its bucket is incomplete on this rank, so the caller must not just
  // wait.
  bool stuck(const void* token) const;
  // Return all tokens that were offered but not taken.
  std::vector<void*> outstanding() const;

 private:
  // Entries that can only be told apart by their order: unnamed entries, and entries with a repeated name.
  struct Stream {
    std::vector<uint32_t> entries;  // entries, in the order of submission
    uint64_t seen = 0;
    uint32_t next() const { return entries[seen % entries.size()]; }
    uint32_t previous() const { return entries[(seen + entries.size() - 1) % entries.size()]; }
  };
  struct Slot {
    Request request;             // Request that the schedule expects.
    std::vector<void*> waiting;  // Tokens that wait in this slot, one per round; rarely more than one.
    uint32_t bucket = 0;
    bool mine = false;
    bool running = false;  // number of tokens that are taken but not finished
    Stream* stream = nullptr;
  };
  void add(uint32_t entry, void* token, bool* completed);
  void advance();
  bool anything_mine() const { return !by_name_.empty() || !unnamed_.empty(); }

  std::shared_ptr<const Schedule> schedule_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> missing_;  // For each bucket, the number of this rank's entries that have no waiting token.
  std::unordered_map<std::string, Stream> by_name_;    // Streams of named entries, keyed by set, frontend and name (make_key()).
  std::unordered_map<uint64_t, Stream> unnamed_;       // Streams of unnamed entries, keyed by stream_of().
  uint64_t ready_ = 0;
  uint64_t executed_ = 0;
  mutable std::string key_;
};

}  // namespace hvd
