#include "agree/stall.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace hvd {

namespace {

constexpr size_t kNamesShown = 6;

// Replace line breaks and other control characters in the name, so that it fits on one line.
std::string on_a_line(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr char kDigits[] = "0123456789abcdef";
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      out += c;
    }
  }
  return out;
}

std::string seconds(double s) { return std::to_string(static_cast<long long>(std::llround(s))) + " s"; }

}  // namespace

Status StallCheck::check(const Negotiator& negotiator, double now, const LogSink& log, bool* warned) {
  *warned = false;
  if (now - last_look_ < 1.0) return {};
  last_look_ = now;
  const bool may_end = shutdown_ > 0 && shutdown_ >= warning_;
  if (warning_ <= 0 && !may_end) return {};
  const auto waiting = negotiator.waiting(now - (warning_ > 0 ? warning_ : shutdown_));
  if (waiting.empty()) return {};

  // Names of the operations that are waiting for each missing rank.
  std::map<int, std::vector<std::string>> missing;
  bool ended = false;
  double longest = 0;
  for (const auto& w : waiting) {
    const double age = now - w.requested;
    const bool past = may_end && age >= shutdown_;
    ended = ended || past;
    longest = std::max(longest, age);
    std::string name(past ? "!" : "");
    name += on_a_line(w.name);
    for (int r : w.missing) missing[r].push_back(name);
  }
  std::string text = "operations have been waiting for up to " + seconds(longest) + " because some ranks did not submit them:";
  for (const auto& [rank, names] : missing) {
    text += "\n  missing on " + labels_[rank] + ": ";
    for (size_t i = 0; i < names.size() && i < kNamesShown; ++i) text += (i ? ", " : "") + names[i];
    if (names.size() > kNamesShown) text += ", ...";
  }
  text += "\n  All ranks must call the same operations. Check whether one of them takes another branch or has run out of data (see join).";
  if (ended) return Status(Code::timeout, text);
  if (last_warning_ == 0 || now - last_warning_ >= warning_) {
    last_warning_ = now;
    *warned = true;
    if (log) log(LogLevel::warning, text);
  }
  return {};
}

namespace {

constexpr size_t kOperationsShown = 6;

}  // namespace

double LocalStallCheck::grace() const { return std::clamp(warning_ > 0 ? warning_ : shutdown_, 1.5, 5.0); }

void LocalStallCheck::known(const std::vector<std::string>& keys, double now) {
  known_ = {keys.begin(), keys.end()};
  known_at_ = now;
}

Status LocalStallCheck::check(const std::vector<Waiting>& waiting, const std::string& why, double now, const LogSink& log) {
  last_look_ = now;
  const bool may_end = shutdown_ > 0 && shutdown_ >= warning_;
  const double first = (warning_ > 0 ? warning_ : shutdown_) + grace();
  // Trust rank 0's report only while it is recent. Rank 0 repeats its reports while an operation waits, so an old
  // report can be outdated.
  const bool fresh = known_at_ > 0 && now - known_at_ <= first;
  std::vector<const Waiting*> unknown;
  double longest = 0;
  for (const Waiting& w : waiting) {
    if (now - w.since < first || (fresh && known_.count(w.key))) continue;
    unknown.push_back(&w);
    longest = std::max(longest, now - w.since);
  }
  if (unknown.empty()) return {};
  std::string text =
      "operations of " + label_ + " have been waiting for up to " + std::to_string(static_cast<long long>(std::llround(longest))) + " s:";
  for (size_t i = 0; i < unknown.size() && i < kOperationsShown; ++i) text += (i ? ", " : " ") + unknown[i]->what;
  if (unknown.size() > kOperationsShown) text += ", ...";
  text += "\n  Rank 0, which reports waiting operations, has not reported them" +
          (why.empty() ? "; check whether its process is stopped" : ". " + why);
  if (may_end && longest >= shutdown_ + grace()) return Status(Code::timeout, text);
  if (warning_ > 0 && (last_warning_ == 0 || now - last_warning_ >= warning_)) {
    last_warning_ = now;
    if (log) log(LogLevel::warning, text);
  }
  return {};
}

}  // namespace hvd
