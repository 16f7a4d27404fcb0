// Following a schedule on one rank: matches submissions with its entries and says how far this rank is ready. Pure.
//
//   submission --find()--> entry --offer()--> waiting in its slot --take(), with all of its bucket--> running --finish()--> gone
//                 |            |
//              no such      not what is expected there: the rank leaves the schedule
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
  // `requests`: this rank's requests of the schedule's operations by entry (from the negotiated step before), null where this rank takes
  // no part.
  ScheduleCursor(std::shared_ptr<const Schedule> schedule, std::vector<const Request*> requests);

  const Schedule& schedule() const { return *schedule_; }

  // The entry that a submission of this kind and name belongs to; kNoEntry: the schedule has none.
  static constexpr uint32_t kNoEntry = UINT32_MAX;
  uint32_t find(const Request& request) const;
  // Is an operation of this entry's name under way: offered, and finish() has not been called for it? (Unnamed ones may be under way
  // several times.)
  bool busy(uint32_t entry) const;
  // Does the name of this entry come several times in a round?
  bool repeated(uint32_t entry) const { return slots_[entry].stream != nullptr; }
  // A submission that belongs to `entry` as find() says. Returns false when it is not what the schedule expects (then nothing is
  // remembered). `token` is the caller's. `completed`: a bucket has become complete by it.
  bool offer(uint32_t entry, const Request& request, void* token, bool* completed);
  // The same for an operation whose request was accepted for this entry before, by this cursor: nothing is compared. Not for names that
  // are repeated().
  void offer_again(uint32_t entry, void* token, bool* completed);

  // Number of buckets, counted from the first of the first round on, that are submitted completely here, without gap.
  uint64_t ready() const { return ready_; }
  uint64_t executed() const { return executed_; }
  // Takes the next bucket: its tokens in the order of its entries (null where this rank takes no part).
  const Schedule::Bucket& take(std::vector<void*>* tokens);
  // What was taken for this entry has been carried out.
  void finish(uint32_t entry) { slots_[entry].running = false; }

  // What take() would give, left where it is.
  const Schedule::Bucket& peek(std::vector<void*>* tokens) const;

  // Is this operation one that waits in the schedule, and is its bucket not complete here (so that waiting cannot help)?
  bool stuck(const void* token) const;
  // All tokens that have been offered and not taken.
  std::vector<void*> outstanding() const;

 private:
  // Entries that are told apart only by their order: unnamed ones, and those of a name that comes several times in a round.
  struct Stream {
    std::vector<uint32_t> entries;  // in order of submission
    uint64_t seen = 0;
    uint32_t next() const { return entries[seen % entries.size()]; }
    uint32_t previous() const { return entries[(seen + entries.size() - 1) % entries.size()]; }
  };
  struct Slot {
    Request request;             // what is expected
    std::vector<void*> waiting;  // by round; seldom more than one
    uint32_t bucket = 0;
    bool mine = false;
    bool running = false;  // taken, not finished
    Stream* stream = nullptr;
  };
  void add(uint32_t entry, void* token, bool* completed);
  void advance();
  bool anything_mine() const { return !by_name_.empty() || !unnamed_.empty(); }

  std::shared_ptr<const Schedule> schedule_;
  std::vector<Slot> slots_;
  std::vector<uint32_t> missing_;                      // by bucket: how many of my entries nothing waits for
  std::unordered_map<std::string, Stream> by_name_;    // by set, face and name, see make_key()
  std::unordered_map<uint64_t, Stream> unnamed_;       // by stream_of()
  uint64_t ready_ = 0;
  uint64_t executed_ = 0;
  mutable std::string key_;
};

}  // namespace hvd
