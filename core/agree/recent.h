// This rank's requests of operations negotiated lately: a schedule names operations, and each rank knows what it asked for. Pure.
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
  // `capacity`: most operations of a schedule; 0: there are none, so nothing is remembered.
  explicit RecentRequests(size_t capacity) : capacity_(capacity) {}

  void remember(const Request& request);
  // Null when it is not known any more.
  const Request* find(const std::string& key) const;

 private:
  struct Entry {
    Request request;
    uint64_t stamp;
  };
  size_t capacity_;
  uint64_t stamps_ = 0;
  std::unordered_map<std::string, Entry> by_key_;
  std::deque<std::pair<uint64_t, std::string>> by_age_;  // outdated when the stamp is not the newest of its key
};

}  // namespace hvd
