// Position of one rank in a schedule: matches submissions with entries and tells how far this rank is ready. Pure.
//
//   submission --find()--> entry --offer()--> waiting in its slot --take(), with its whole bucket--> running --finish()--> done
//                 |            |
//              none        unexpected request: the rank leaves the schedule
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
  // `requests`: this rank's request for each entry, from the negotiated step before; null where this rank takes no
  // part.
  ScheduleCursor(std::shared_ptr<const Schedule> schedule, std::vector<const Request*> requests);

  const Schedule& schedule() const { return *schedule_; }

  // Return the entry that a submission of this kind and name belongs to, or kNoEntry.
  static constexpr uint32_t kNoEntry = UINT32_MAX;
  uint32_t find(const Request& request) const;
  // True if an operation with this entry's name is in flight: offered, but not yet finish()ed. Unnamed entries may be
  // in flight several times.
  bool busy(uint32_t entry) const;
  // True if the name of this entry occurs several times in a round.
  bool repeated(uint32_t entry) const { return slots_[entry].stream != nullptr; }
  // Offer a submission for `entry` as returned by find(). Return false, and store nothing, if the schedule expects a
  // different request. `token` is opaque. `completed`: set if this completed a bucket.
  bool offer(uint32_t entry, const Request& request, void* token, bool* completed);
  // Offer an operation whose request this cursor accepted for the entry before, without comparing. Not for repeated()
  // names.
  void offer_again(uint32_t entry, void* token, bool* completed);

  // Number of consecutive buckets, from the first of the first round, for which this rank has submitted everything.
  uint64_t ready() const { return ready_; }
  uint64_t executed() const { return executed_; }
  // Take the next bucket. `tokens` receives its tokens in the order of its entries (null where this rank takes no
  // part).
  const Schedule::Bucket& take(std::vector<void*>* tokens);
  // Mark the operation taken for this entry as executed.
  void finish(uint32_t entry) { slots_[entry].running = false; }

  // Return what take() would, without taking it.
  const Schedule::Bucket& peek(std::vector<void*>* tokens) const;

  // True if this operation waits in the schedule and its bucket is incomplete on this rank, so waiting cannot help.
  bool stuck(const void* token) const;
  // All tokens that were offered but not taken.
  std::vector<void*> outstanding() const;

 private:
  // Entries that only their order distinguishes: unnamed ones, and repeated names.
  struct Stream {
    std::vector<uint32_t> entries;  // entries in order of submission
    uint64_t seen = 0;
    uint32_t next() const { return entries[seen % entries.size()]; }
    uint32_t previous() const { return entries[(seen + entries.size() - 1) % entries.size()]; }
  };
  struct Slot {
    Request request;             // the expected request
    std::vector<void*> waiting;  // one token per round; rarely more than one
    uint32_t bucket = 0;
    bool mine = false;
    bool running = false;  // taken but not finished
    Stream* stream = nullptr;
  };
  void add(uint32_t entry, void* token, bool* completed);
  void advance();
  bool anything_mine() const { return !by_name_.empty() || !unnamed_.empty(); }

  std::shared_ptr<const Schedule> schedule_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> missing_;  // by bucket: number of this rank's entries without a waiting token
  std::unordered_map<std::string, Stream> by_name_;    // key: set, frontend and name, see make_key()
  std::unordered_map<uint64_t, Stream> unnamed_;       // key: stream_of()
  uint64_t ready_ = 0;
  uint64_t executed_ = 0;
  mutable std::string key_;
};

}  // namespace hvd
