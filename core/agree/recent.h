// This rank's requests of recently negotiated operations. A schedule only names operations; each rank looks up its own
// request here. Pure.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "agree/request.h"

namespace hvd {

class RecentRequests {
 public:
  // `capacity`: maximum operations of a schedule; 0: no schedules, so nothing is stored.
  explicit RecentRequests(size_t capacity) : capacity_(capacity) {}

  void remember(const Request& request);
  // Null if it is unknown or was evicted.
  const Request* find(const std::string& key) const;

 private:
  struct Entry {
    Request request;
    uint64_t stamp;
  };
  size_t capacity_;
  uint64_t stamps_ = 0;
  std::unordered_map<std::string, Entry> by_key_;
  std::deque<std::pair<uint64_t, std::string>> by_age_;  // an entry is stale if its stamp is not the newest of its key
};

}  // namespace hvd
