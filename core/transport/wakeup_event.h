// Wakeup event of an engine: an eventfd on which the engine sleeps (together with its sockets, see Waiter), and a word that shows whether
// it sleeps. The word can be in shared memory. A peer that has stored data there then makes a system call only if the engine sleeps.
//
// No wakeup is lost, because each side stores before it reads. The sleeper stores its sleep state, then checks its condition once more. The
// waker stores the condition, then checks the sleep state. All four accesses are sequentially consistent, so at least one side sees the
// other's store. A waker must therefore publish with a seq_cst store before it calls wake().
#pragma once
#include <atomic>
#include <cstdint>

namespace hvd {

// Sleep state of an engine. A higher value means that more events wake the engine.
enum class SleepState : uint32_t {
  awake = 0,
  // The engine sleeps with nothing in flight. Submissions wake it, progress of a peer does not.
  idle = 1,
  // The engine sleeps until a peer makes progress in shared memory.
  waiting = 2,
};

// Shared word that shows whether the engine sleeps, on a separate cache line.
struct WakeupWord {
  alignas(64) std::atomic<uint32_t> sleep_state{0};
};

// Handle to the wakeup event of this engine or of a local peer. Copyable; does not own the event.
class WakeupEvent {
 public:
  WakeupEvent() = default;
  WakeupEvent(int eventfd, WakeupWord* word) : fd_(eventfd), word_(word) {}
  // Wake the owner if its sleep state is `at_least` or higher. SleepState::waiting reports progress, which wakes only an owner that waits
  // for it. SleepState::idle reports any other event.
  void wake(SleepState at_least) const {
    if (word_ && word_->sleep_state.load(std::memory_order_seq_cst) >= static_cast<uint32_t>(at_least)) notify();
  }
  // Wake the owner in any state, with one write(2).
  void notify() const;
  int fd() const { return fd_; }
  WakeupWord* word() const { return word_; }

 private:
  int fd_ = -1;
  WakeupWord* word_ = nullptr;
};

}  // namespace hvd
