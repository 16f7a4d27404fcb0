// Steady state without negotiation. Training repeats: the same tensors, step after step. Once the coordinator has seen the same list
// twice it proposes it as a schedule; all ranks adopt it at the same place of the order of operations. From then on a bucket (one
// fused operation) starts when its tensors have been submitted everywhere, in the schedule's order, without any message that describes
// them. A rank that does something else revokes the schedule and everybody goes back to negotiation (engine/steady.h).
//
// Everything here is pure.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/fuse.h"
#include "agree/request.h"
#include "agree/steady_word.h"

namespace hvd {

// One rank's view of one operation of the schedule. Requests can differ between ranks (allgather's first dimension), so every rank
// keeps its own; what is common is in the bucket's parts.
struct ScheduleEntry {
  uint32_t set = 0;
  Kind kind = Kind::allreduce;
  std::string name;      // of the operation when it was negotiated
  bool unnamed = false;
  uint8_t face = 0;
};

struct Schedule {
  uint64_t id = 0;
  // What starts, and is left, as a whole: one response, or all those of a group that needs several.
  struct Bucket {
    std::vector<Response> parts;    // of one process set; carried out one after the other
    std::vector<uint32_t> entries;  // indices into `entries`, in the order of the parts' names
    uint32_t set() const { return parts.front().set; }
  };
  std::vector<ScheduleEntry> entries;
  std::vector<Bucket> buckets;
};
void encode(const Schedule& schedule, std::string* out);
bool decode(const std::string& bytes, Schedule* out);

// ---- coordinator: finding the period --------------------------------------------------------------------------------------
class ScheduleDetector {
 public:
  // `capacity`: most operations of a schedule; 0: never propose one.
  explicit ScheduleDetector(size_t capacity) : capacity_(capacity) {}

  // An operation has become ready. `identity`: hash of what must repeat: set, face, name unless unnamed, signature of all ranks; operations
  // that cannot be scheduled (errors, join, process sets) call reset() instead.
  void feed(const Ready& ready, uint64_t identity);
  void reset();

  // When the last operations are two equal periods that begin at a fence: the last period, in order. Else empty.
  std::vector<Ready> period() const;
  // A schedule of `operations` ended after `rounds` rounds. After one that did not last, or several that lasted only briefly, only longer
  // ones are proposed (its period was part of a longer one); after several that did not last the next proposal waits, twice as long each
  // time, so that a program which never settles pays next to nothing for the attempts.
  void note_revoked(uint64_t rounds, size_t operations);

 private:
  struct Token {
    uint64_t identity;
    uint64_t prefix;  // sum of identities up to and including this one
    Ready ready;
  };
  struct Shape {
    std::map<uint32_t, std::vector<std::vector<uint64_t>>> sections;
    std::vector<uint64_t> unnamed;
    bool operator==(const Shape&) const = default;
  };
  bool repeats_within(size_t p) const;
  bool ambiguous(size_t p) const;
  size_t period_length() const;
  Shape shape_of(size_t from, size_t count) const;
  bool may_begin(size_t at) const;
  size_t capacity_;
  size_t hold_ = 0;   // operations still to be seen before the next proposal
  size_t least_ = 1;    // length of a period to propose
  size_t recover_ = 0;  // operations until that is 1 again
  int failures_ = 0;  // schedules in a row that did not last
  static constexpr int kBriefPatience = 2;
  int brief_ = 0;                   // schedules in a row that lasted only briefly
  int patience_ = kBriefPatience;   // so many of them until a longer period is looked for
  std::deque<Token> log_;
};

Schedule make_schedule(uint64_t id, std::vector<Ready> period, const FuseOptions& options);

// ---- every rank: following it ---------------------------------------------------------------------------------------------
// Matches submissions with the schedule's entries and says how far this rank is ready. Not thread-safe.
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
