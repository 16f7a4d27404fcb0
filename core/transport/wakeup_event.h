// Wakeup event of an engine: an eventfd that the engine sleeps on (together with its sockets, see Waiter) and a word
// that tells whether it sleeps. The word may be in memory shared with other processes, so a peer that has stored data
// in shared memory makes a system call only if the engine really sleeps.
//
// Why no wakeup is lost: the sleeper stores its sleep state, then checks its condition once more; the waker stores the
// condition, then checks the sleep state. All four accesses are sequentially consistent, so at least one side sees the other's
// store. A waker must therefore publish with a seq_cst store before it calls wake().
#pragma once
#include <atomic>
#include <cstdint>

namespace hvd {

// Whether and for what an engine sleeps; a higher value is woken for more events.
enum class SleepState : uint32_t {
  awake = 0,
  idle = 1,     // Nothing in flight: wake for submissions, not for a peer's progress.
  waiting = 2,  // Waits for a peer's progress in shared memory.
};

// The word that tells whether the engine sleeps, on its own cache line.
struct WakeupWord {
  alignas(64) std::atomic<uint32_t> sleep_state{0};
};

// Handle to a wakeup event, this engine's or a local peer's. Copyable; does not own it.
class WakeupEvent {
 public:
  WakeupEvent() = default;
  WakeupEvent(int eventfd, WakeupWord* word) : fd_(eventfd), word_(word) {}
  // Wake the owner if it sleeps in `at_least` or a higher state: wake(SleepState::waiting) for progress, wake(SleepState::idle) for
  // other news.
  void wake(SleepState at_least) const {
    if (word_ && word_->sleep_state.load(std::memory_order_seq_cst) >= static_cast<uint32_t>(at_least)) notify();
  }
  void notify() const;  // wakes unconditionally, with one write(2)
  int fd() const { return fd_; }
  WakeupWord* word() const { return word_; }

 private:
  int fd_ = -1;
  WakeupWord* word_ = nullptr;
};

}  // namespace hvd
