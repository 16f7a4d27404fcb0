// One submitted operation: what was asked, where its memory is, and the handle that its caller waits on.
#pragma once
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "engine/request.h"

namespace hvd {

// Output that only the engine can size (allgather, alltoall).
class Output {
 public:
  explicit Output(size_t bytes);
  ~Output();
  Output(const Output&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

class Operation {
 public:
  Request request;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  float* residual = nullptr;         // wire format: what coding loses, see collectives/collectives.h; null: it is lost
  uint64_t sequence = 0;             // order of submission on this rank
  uint64_t unnamed_number = 0;       // becomes the name if it has to be announced
  Clock::time_point submitted{};
  std::atomic<int64_t> first_poll{0};  // nanoseconds; 0: never polled
  std::atomic<bool> awaited{false};  // somebody blocks on it: batch no longer

  // Results; valid once done.
  std::vector<int64_t> sizes;
  std::shared_ptr<Output> output;

  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }
  const Status& status() const { return status_; }
  void complete(Status status);
  // Sleeps until done or `deadline`; true when done.
  bool sleep_until(Deadline deadline);

 private:
  static constexpr uint32_t kPending = 0, kSleepers = 1, kDone = 2;
  std::atomic<uint32_t> state_{kPending};
  Status status_;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace hvd
