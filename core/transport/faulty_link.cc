#include "transport/faulty_link.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

namespace hvd {

FaultyLink::FaultyLink(std::unique_ptr<Link> inner, FaultScript script, WakeupEvent own_wakeup)
    : inner_(std::move(inner)), script_(script), own_wakeup_(own_wakeup) {}

bool FaultyLink::stalls() {
  if (script_.stall_calls == 0 || passed_ % std::max(script_.stall_every, 1) != 0) {
    ++passed_;
    return false;
  }
  if (stalled_ < script_.stall_calls) {
    ++stalled_;
    own_wakeup_.notify();
    return true;
  }
  stalled_ = 0;
  ++passed_;
  return false;
}

int64_t FaultyLink::cut(const char* after) {
  inner_.reset();
  cut_ = Status(Code::peer_lost, std::string("the connection was cut by a fault script after ") + after);
  return -1;
}

size_t FaultyLink::limit(size_t bytes, uint64_t moved, uint64_t cut_after) const {
  return static_cast<size_t>(std::min<uint64_t>({bytes, script_.piece, cut_after - moved}));
}

int64_t FaultyLink::try_send(ConstBytes data) {
  if (!inner_) return -1;
  if (sent_ >= script_.cut_after_sent) return cut("sending");
  if (stalls()) return 0;
  const int64_t n = inner_->try_send(data.first(limit(data.size(), sent_, script_.cut_after_sent)));
  if (n > 0) sent_ += static_cast<uint64_t>(n);
  return n;
}

int64_t FaultyLink::try_recv(Bytes data) {
  if (!inner_) return -1;
  if (received_ >= script_.cut_after_received) return cut("receiving");
  if (received_ >= script_.nap_after_received && !napped_) {
    napped_ = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(script_.nap_ms));
  }
  if (stalls()) return 0;
  const int64_t n = inner_->try_recv(data.first(limit(data.size(), received_, script_.cut_after_received)));
  if (n > 0) received_ += static_cast<uint64_t>(n);
  return n;
}

}  // namespace hvd
