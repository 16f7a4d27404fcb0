#include "agree/schedule_detector.h"

#include <algorithm>

namespace hvd {

void ScheduleDetector::reset() { log_.clear(); }

// Number of operations after which the detector accepts short periods again, because the program may have changed, for example from
// training to validation.
constexpr size_t kRecovery = 128;
// A schedule that ended after fewer operations than this was probably part of a longer period.
constexpr uint64_t kBrief = 1024;

void ScheduleDetector::note_revoked(uint64_t rounds, size_t operations) {
  constexpr uint64_t kLasting = 16;
  constexpr int kPatience = 8;
  reset();
  if (rounds >= kLasting) {
    failures_ = 0;
    least_ = 1;
    // Several schedules that ended after few operations suggest a longer period, such as twenty equal operations and a barrier. A schedule
    // of one operation then lasts long enough to be worthwhile, but hides the longer period. Search for longer periods only occasionally,
    // because the search is costly.
    const bool brief = rounds * operations < kBrief;
    brief_ = brief ? brief_ + 1 : 0;
    if (!brief) patience_ = kBriefPatience;
    if (brief_ < patience_) return;
    brief_ = 0;
    patience_ = std::min(2 * patience_, 64 * kBriefPatience);
    least_ = operations + 1;
    recover_ = kRecovery;
    return;
  }
  brief_ = 0;
  least_ = operations + 1;
  recover_ = kRecovery;
  if (++failures_ <= kPatience) return;
  hold_ = size_t{16} << std::min(failures_ - kPatience, 10);
  least_ = 1;
}

void ScheduleDetector::feed(const Ready& ready, uint64_t identity) {
  if (capacity_ == 0) return;
  if (hold_ > 0) --hold_;
  if (recover_ > 0 && --recover_ == 0) least_ = 1;
  const uint64_t prefix = (log_.empty() ? 0 : log_.back().prefix) + identity;
  log_.push_back({identity, prefix, ready});
  if (log_.size() > 2 * capacity_ + 2) {
    log_.pop_front();
  }
}

// Return a canonical form of a sequence of operations, so that sequences which differ only in the ranks' timing are
// equal. Each process set's operations are split at the points where the program waits, and each section is sorted by
// hash. The order of sections and of unnamed operations is kept.
ScheduleDetector::Shape ScheduleDetector::shape_of(size_t from, size_t count) const {
  Shape shape;
  std::map<uint32_t, uint64_t> fence;
  for (size_t i = from; i < from + count; ++i) {
    const Token& t = log_[i];
    const uint32_t set = t.ready.response.set;
    auto& sections = shape.sections[set];
    const uint64_t waits = t.ready.fence >> kWeakFenceBits;
    if (sections.empty() || fence[set] != waits) sections.emplace_back();
    fence[set] = waits;
    sections.back().push_back(t.identity);
    if (t.ready.unnamed) shape.unnamed.push_back(t.identity);
  }
  for (auto& [set, sections] : shape.sections) {
    for (auto& section : sections) std::sort(section.begin(), section.end());
  }
  return shape;
}

// True if the last `p` operations repeat a sequence of fewer than least_ operations, which is too short to become a schedule.
bool ScheduleDetector::repeats_within(size_t p) const {
  const size_t n = log_.size();
  auto sum = [&](size_t from, size_t to) {
    uint64_t total = 0;
    for (size_t i = from; i < to; ++i) total += log_[i].identity;
    return total;
  };
  for (size_t d = 1; d < least_ && 2 * d <= p; ++d) {
    if (p % d) continue;
    const uint64_t first = sum(n - p, n - p + d);
    bool same = true;
    for (size_t at = n - p + d; at < n && same; at += d) same = sum(at, at + d) == first;
    if (same) return true;
  }
  return false;
}

// True if different operations among the last `p` have the same name. They cannot become a schedule, because ranks keep one request per
// name.
bool ScheduleDetector::ambiguous(size_t p) const {
  std::map<std::string, uint64_t> known;
  for (size_t i = log_.size() - p; i < log_.size(); ++i) {
    const Token& t = log_[i];
    if (t.ready.unnamed) continue;
    const auto [it, fresh] =
        known.try_emplace(key_of(t.ready.response.set, t.ready.response.frontend, t.ready.response.names.front()), t.identity);
    if (!fresh && it->second != t.identity) return true;
  }
  return false;
}

// True if a schedule can begin at this operation: the program had waited for all earlier operations, and the operation
// does not continue a group.
bool ScheduleDetector::may_begin(size_t at) const {
  const Ready &before = log_[at - 1].ready, &here = log_[at].ready;
  return before.fence != here.fence && !(here.grouped() && before.unit == here.unit);
}

size_t ScheduleDetector::period_length() const {
  const size_t n = log_.size();
  if (hold_ > 0 || n < 3) return 0;
  // Return the sum of the hashes of the first i operations.
  auto prefix = [&](size_t i) { return i == 0 ? log_[0].prefix - log_[0].identity : log_[i - 1].prefix; };
  for (size_t p = least_; 2 * p + 1 <= n && p <= capacity_; ++p) {
    if (prefix(n) - prefix(n - p) != prefix(n - p) - prefix(n - 2 * p)) continue;
    if (may_begin(n - p) && may_begin(n - 2 * p) && !repeats_within(p) && shape_of(n - p, p) == shape_of(n - 2 * p, p))
      return ambiguous(p) ? 0 : p;
  }
  return 0;
}

std::vector<Ready> ScheduleDetector::period() const {
  const size_t p = period_length();
  std::vector<Ready> out;
  for (size_t i = log_.size() - p; i < log_.size(); ++i) out.push_back(log_[i].ready);
  return out;
}

}  // namespace hvd
