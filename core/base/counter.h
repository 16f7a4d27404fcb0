// Counter that never decreases. It has one writer at a time and any number of readers, so it needs no atomic
// read-modify-write.
#pragma once
#include <atomic>
#include <cstdint>

namespace hvd {

class Counter {
 public:
  void add(uint64_t n) { value_.store(get() + n, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace hvd
