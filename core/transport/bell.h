// Waking a sleeping engine. Each engine owns one Bell: an eventfd that it sleeps on (together with its sockets, see Waiter) and a
// word that says whether it sleeps. The word may lie in memory shared with other processes, so that a peer which has just stored
// something into shared memory pays a system call only when somebody is really asleep.
//
// Why no wake-up is lost: the sleeper stores its mood and then looks at the condition once more; the waker stores the condition
// and then looks at the mood. All four accesses are sequentially consistent, so at least one of the two sees the other's store.
// A waker must therefore publish with a seq_cst store before it calls wake().
#pragma once
#include <atomic>
#include <cstdint>

namespace hvd {

enum class Mood : uint32_t {
  awake = 0,
  idle = 1,     // nothing under way: wants to hear of submissions, not of a peer's progress
  waiting = 2,  // waits for a peer's progress in shared memory
};

struct BellWord {
  alignas(64) std::atomic<uint32_t> mood{0};
};

// A handle to somebody's bell (one's own, or a local peer's). Copyable; owns nothing.
class BellRef {
 public:
  BellRef() = default;
  BellRef(int eventfd, BellWord* word) : fd_(eventfd), word_(word) {}
  // Wakes the owner if it sleeps in `at_least` or a deeper mood: wake(Mood::waiting) for progress, wake(Mood::idle) for news.
  void wake(Mood at_least) const {
    if (word_ && word_->mood.load(std::memory_order_seq_cst) >= static_cast<uint32_t>(at_least)) ring();
  }
  void ring() const;  // unconditionally: one write(2)
  int fd() const { return fd_; }
  BellWord* word() const { return word_; }

 private:
  int fd_ = -1;
  BellWord* word_ = nullptr;
};

}  // namespace hvd
