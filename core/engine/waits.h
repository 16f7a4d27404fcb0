// Meter of the time for which callers are blocked in wait(): communication that is not hidden behind computation. Waiting for a completed
// operation costs nothing, and a blocking wait costs two clock readings. If several threads wait at the same time, only one of them is
// measured.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/counter.h"
#include "base/ticks.h"

namespace hvd {

class Waits {
 public:
  // RAII scope in which the calling thread is counted as blocked. `first` is true for the first wait for the operation.
  class Blocked {
   public:
    Blocked(Waits& waits, bool first) : waits_(waits), measured_(!waits.busy_.exchange(true, std::memory_order_acquire)) {
      if (!measured_) return;
      begin_ = ticks();
      waits_.since_.store(begin_, std::memory_order_relaxed);
      if (first) waits_.arrival_.store(begin_, std::memory_order_relaxed);
    }
    ~Blocked() {
      if (!measured_) return;
      waits_.ticks_.add(ticks() - begin_);
      waits_.since_.store(0, std::memory_order_relaxed);
      waits_.busy_.store(false, std::memory_order_release);
    }
    Blocked(const Blocked&) = delete;

   private:
    Waits& waits_;
    const bool measured_;
    uint64_t begin_ = 0;
  };

  // Count an operation for which no caller calls wait(), so that the program's waiting time for it is unknown.
  void unattended() {
    unattended_.fetch_add(1, std::memory_order_relaxed);
    arrival_.store(ticks(), std::memory_order_relaxed);
  }

  // ---- Functions callable from any thread ---------------------------------------------------------------------------

  // Return the total time, in ticks, that callers have been blocked up to `now`, including the current wait.
  uint64_t blocked(uint64_t now) const {
    const uint64_t over = ticks_.get(), since = this->since();
    return over + (since && since < now ? now - since : 0);
  }
  // Return the start of the current wait, or 0 if no caller is waiting.
  uint64_t since() const { return since_.load(std::memory_order_relaxed); }
  // Return the time at which a caller last started to wait for an operation, or last submitted one for which no caller
  // calls wait(). Return 0 if neither has happened.
  uint64_t arrival() const { return arrival_.load(std::memory_order_relaxed); }
  uint64_t left_unattended() const { return unattended_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> busy_{false};
  Counter ticks_;
  std::atomic<uint64_t> since_{0}, arrival_{0}, unattended_{0};
};

}  // namespace hvd
