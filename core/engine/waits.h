// How long callers were blocked for their operations: what of communication is not hidden behind computing. A wait for what is done
// already costs nothing here, one that blocks two readings of the clock. Of several threads that wait at once one is measured.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/counter.h"
#include "base/ticks.h"

namespace hvd {

class Waits {
 public:
  // For as long as it lives the caller is blocked. `first`: nobody has waited for this operation before.
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

  // An operation that nobody will wait for here: how long its caller is blocked elsewhere is not known.
  void unattended() {
    unattended_.fetch_add(1, std::memory_order_relaxed);
    arrival_.store(ticks(), std::memory_order_relaxed);
  }

  // ---- any thread ---------------------------------------------------------------------------------------------------------
  // Ticks within waits up to `now`, the one that goes on among them.
  uint64_t blocked(uint64_t now) const {
    const uint64_t over = ticks_.get(), since = this->since();
    return over + (since && since < now ? now - since : 0);
  }
  // When the wait that goes on has begun; 0: nobody waits.
  uint64_t since() const { return since_.load(std::memory_order_relaxed); }
  // When a caller last began to wait for an operation, or left one unattended; 0: never.
  uint64_t arrival() const { return arrival_.load(std::memory_order_relaxed); }
  uint64_t left_unattended() const { return unattended_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> busy_{false};
  Counter ticks_;
  std::atomic<uint64_t> since_{0}, arrival_{0}, unattended_{0};
};

}  // namespace hvd
