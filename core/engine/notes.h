// Notes: what observers of one rank have to say to those of another, by way of rank 0. The engine carries them beside its own messages,
// in the order in which they were left, and does not look into them; they arrive as Observer::heard().
//
// They are for a few words now and then (who waits where, how a step went): what is left while the engine is within a collective travels
// when that is over, and what is left after the job's end is dropped.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

struct Note {
  int32_t to;  // of rank 0 alone: a rank, or -1 for everybody, rank 0 too. Others speak to rank 0, whatever this says
  uint32_t topic;
  std::string body;
};

class Notes {
 public:
  static constexpr size_t kMostBytes = 1 << 20, kMostWaiting = 256;

  // Any thread. False: it is too long, or too many wait already.
  bool leave(Note note) {
    if (note.body.size() > kMostBytes) return false;
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMostWaiting) return false;
    waiting_.push_back(std::move(note));
    any_.store(true, std::memory_order_seq_cst);
    return true;
  }
  // Any thread. Rank 0: tell observers of all that waits, see Observer::waiting().
  void ask_who_waits() {
    std::lock_guard lock(mutex_);
    asked_ = true;
    any_.store(true, std::memory_order_seq_cst);
  }

  // Any thread. Where somebody has written what ranks do; an end of the job for waiting too long says so. "": nowhere yet, but who is told
  // that operations wait will do so.
  void set_report(std::string where) {
    std::lock_guard lock(mutex_);
    report_ = std::move(where);
    reports_ = true;
  }
  bool report_may_come() const {
    std::lock_guard lock(mutex_);
    return reports_ && report_.empty();
  }
  std::string report() const {
    std::lock_guard lock(mutex_);
    return report_;
  }

  // ---- the driver -----------------------------------------------------------------------------------------------------------
  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::vector<Note> take(bool* asked) {
    std::lock_guard lock(mutex_);
    any_.store(false, std::memory_order_seq_cst);
    *asked = std::exchange(asked_, false);
    return std::exchange(waiting_, {});
  }

 private:
  std::atomic<bool> any_{false};
  mutable std::mutex mutex_;
  std::vector<Note> waiting_;  // under it
  std::string report_;
  bool reports_ = false;
  bool asked_ = false;
};

}  // namespace hvd
