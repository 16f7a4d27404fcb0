#include "transport/inproc_link.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

namespace hvd {
namespace {

class ByteQueue {
 public:
  explicit ByteQueue(size_t capacity) : ring_(std::max<size_t>(capacity, 1)) {}
  bool empty() const { return used_ == 0; }

  size_t push(ConstBytes data) {
    const size_t n = std::min(data.size(), ring_.size() - used_);
    const size_t at = (begin_ + used_) % ring_.size();
    const size_t first = std::min(n, ring_.size() - at);
    std::memcpy(ring_.data() + at, data.data(), first);
    std::memcpy(ring_.data(), data.data() + first, n - first);
    used_ += n;
    return n;
  }

  size_t pop(Bytes data) {
    const size_t n = std::min(data.size(), used_);
    const size_t first = std::min(n, ring_.size() - begin_);
    std::memcpy(data.data(), ring_.data() + begin_, first);
    std::memcpy(data.data() + first, ring_.data(), n - first);
    begin_ = (begin_ + n) % ring_.size();
    used_ -= n;
    return n;
  }

 private:
  std::vector<std::byte> ring_;
  size_t begin_ = 0, used_ = 0;
};

}  // namespace

struct InprocLink::Pipe {
  explicit Pipe(size_t capacity) : from{ByteQueue(capacity), ByteQueue(capacity)} {}
  std::mutex mutex;
  // Queues of the bytes that each side has sent.
  ByteQueue from[2];
  bool closed[2] = {false, false};
};

InprocLink::Pair InprocLink::make_pair(WakeupEvent first, WakeupEvent second, size_t capacity) {
  auto pipe = std::make_shared<Pipe>(capacity);
  return {std::unique_ptr<InprocLink>(new InprocLink(pipe, 0, second)), std::unique_ptr<InprocLink>(new InprocLink(pipe, 1, first))};
}

int64_t InprocLink::broken() {
  const bool own = pipe_->closed[side_];
  if (error_.ok()) error_ = Status(Code::peer_lost, own ? "this end of the connection is closed" : "the peer closed its connection");
  return -1;
}

int64_t InprocLink::try_send(ConstBytes data) {
  size_t n = 0;
  {
    std::lock_guard lock(pipe_->mutex);
    if (pipe_->closed[0] || pipe_->closed[1]) return broken();
    n = pipe_->from[side_].push(data);
  }
  if (n > 0) peer_wakeup_.wake(SleepState::waiting);
  return static_cast<int64_t>(n);
}

int64_t InprocLink::try_recv(Bytes data) {
  size_t n = 0;
  {
    std::lock_guard lock(pipe_->mutex);
    ByteQueue& queue = pipe_->from[1 - side_];
    if (pipe_->closed[side_] || (pipe_->closed[1 - side_] && queue.empty())) return broken();
    n = queue.pop(data);
  }
  if (n > 0) peer_wakeup_.wake(SleepState::waiting);
  return static_cast<int64_t>(n);
}

void InprocLink::close() {
  {
    std::lock_guard lock(pipe_->mutex);
    if (pipe_->closed[side_]) return;
    pipe_->closed[side_] = true;
  }
  peer_wakeup_.wake(SleepState::waiting);
}

}  // namespace hvd
