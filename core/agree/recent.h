// Recent requests of this rank. A schedule contains only names, for which each rank looks up its own requests in this class. The class does
// no I/O and starts no threads.
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
  // `capacity` is the maximum number of operations in a schedule. If it is 0, schedules are disabled and nothing is
  // stored.
  explicit RecentRequests(size_t capacity) : capacity_(capacity) {}

  void remember(const Request& request);
  // Return the latest request with this key, or null if it is unknown or was evicted.
  const Request* find(const std::string& key) const;

 private:
  struct Entry {
    Request request;
    uint64_t stamp;
  };
  size_t capacity_;
  uint64_t stamps_ = 0;
  std::unordered_map<std::string, Entry> by_key_;
  // Stamp and key of each stored request, oldest first. Stamps increase with each request. An entry is outdated if a
  // newer one has the same key.
  std::deque<std::pair<uint64_t, std::string>> by_age_;
};

}  // namespace hvd
