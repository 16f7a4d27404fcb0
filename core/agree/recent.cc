#include "agree/recent.h"

namespace hvd {

void RecentRequests::remember(const Request& request) {
  if (capacity_ == 0) return;
  std::string key = key_of(request);
  by_key_.insert_or_assign(key, Entry{request, ++stamps_});
  by_age_.emplace_back(stamps_, std::move(key));
  // Evict entries beyond twice the capacity. The operations of the last two periods are always kept, so a new schedule finds the requests
  // of all its operations.
  if (by_age_.size() <= 2 * capacity_ + 2) return;
  const auto& [stamp, oldest] = by_age_.front();
  const auto it = by_key_.find(oldest);
  if (it != by_key_.end() && it->second.stamp == stamp) by_key_.erase(it);
  by_age_.pop_front();
}

const Request* RecentRequests::find(const std::string& key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? nullptr : &it->second.request;
}

}  // namespace hvd
