#include "agree/watch.h"

#include <algorithm>
#include <cmath>

namespace hvd {
namespace {

constexpr size_t kOperationsShown = 6;

}  // namespace

double Watch::grace() const { return std::clamp(warning_ > 0 ? warning_ : shutdown_, 1.5, 5.0); }

void Watch::known(const std::vector<std::string>& keys, double now) {
  known_ = {keys.begin(), keys.end()};
  known_at_ = now;
}

Status Watch::check(const std::vector<Waiting>& waiting, const std::string& why, double now, const LogSink& log) {
  last_look_ = now;
  const bool may_end = shutdown_ > 0 && shutdown_ >= warning_;
  const double first = (warning_ > 0 ? warning_ : shutdown_) + grace();
  // Rank 0 repeats its report; operations that it no longer reports it may have forgotten.
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
