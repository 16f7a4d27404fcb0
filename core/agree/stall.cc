#include "agree/stall.h"

#include <cmath>
#include <map>

namespace hvd {
namespace {

constexpr size_t kNamesShown = 6;

// Return the name on one line, whatever characters it contains.
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

Status Stall::check(const Negotiator& negotiator, double now, const LogSink& log, bool* told) {
  *told = false;
  if (now - last_look_ < 1.0) return {};
  last_look_ = now;
  const bool may_end = shutdown_ > 0 && shutdown_ >= warning_;
  if (warning_ <= 0 && !may_end) return {};
  const auto waiting = negotiator.waiting(now - (warning_ > 0 ? warning_ : shutdown_));
  if (waiting.empty()) return {};

  std::map<int, std::vector<std::string>> missing;  // rank -> operations that wait for it
  bool ended = false;
  double longest = 0;
  for (const auto& w : waiting) {
    const double age = now - w.announced;
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
    *told = true;
    if (log) log(LogLevel::warning, text);
  }
  return {};
}

}  // namespace hvd
