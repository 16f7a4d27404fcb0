// Message bus between observers of different ranks, routed through rank 0. The engine carries these messages beside its
// own, in the order in which they were submitted, without reading them. They arrive as Observer::heard().
//
// Meant for short, occasional messages, such as which rank waits where. Messages submitted during a collective are sent
// after it; messages submitted after the end of the job are dropped.
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hvd {

struct Note {
  // Used by rank 0 only: target rank, or -1 for all ranks including rank 0. Other ranks always send to rank 0.
  int32_t to;
  uint32_t topic;
  std::string body;
};

class Notes {
 public:
  static constexpr size_t kMostBytes = 1 << 20, kMostWaiting = 256;

  // Queue a message. Callable from any thread. Return false if it is too long or too many messages are queued.
  bool leave(Note note) {
    if (note.body.size() > kMostBytes) return false;
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMostWaiting) return false;
    waiting_.push_back(std::move(note));
    any_.store(true, std::memory_order_seq_cst);
    return true;
  }
  // Callable from any thread. On rank 0: report all waiting operations to the observers, see Observer::waiting().
  void ask_who_waits() {
    std::lock_guard lock(mutex_);
    asked_ = true;
    any_.store(true, std::memory_order_seq_cst);
  }

  // Record where a report on what the ranks do was written; a stall timeout includes it in its error. "": not written
  // yet, but an observer told about waiting operations will write one. Callable from any thread.
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

  // ---- called by the driver -----------------------------------------------------------------------------------------
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
  std::vector<Note> waiting_;  // guarded by mutex_
  std::string report_;
  bool reports_ = false;
  bool asked_ = false;
};

}  // namespace hvd
