#include "trace/mailbox.h"

#include <cstdio>

#include "base/json.h"
#include "trace/clock.h"

namespace hvd {
namespace {

void append(std::string* out, std::span<const int> ranks) {
  out->push_back('[');
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i) out->push_back(',');
    *out += std::to_string(ranks[i]);
  }
  out->push_back(']');
}

}  // namespace

bool Mailbox::take(Letter* letter, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.when(), [this] { return closed_ || !letters_.empty(); });
  if (letters_.empty()) return false;
  *letter = std::move(letters_.front());
  letters_.pop_front();
  return true;
}

void Mailbox::heard(int from, uint32_t topic, std::string_view body) {
  if (topic == static_cast<uint32_t>(Topic::clock_told)) return;  // for who has asked, another observer
  if (topic == static_cast<uint32_t>(Topic::clock_ask)) {
    auto answer = ClockOffset::answer(body, monotonic_ns());
    if (say_ && answer) say_({from, static_cast<uint32_t>(Topic::clock_told), std::move(*answer)});
    return;
  }
  put(Letter{from, topic, std::string(body)});
}

void Mailbox::put(Letter letter) {
  {
    std::lock_guard lock(mutex_);
    if (closed_ || letters_.size() >= kMost) return;
    letters_.push_back(std::move(letter));
  }
  changed_.notify_one();
}

void Mailbox::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool Mailbox::closed() const {
  std::lock_guard lock(mutex_);
  return closed_;
}

void Mailbox::waiting(std::span<const Negotiator::Waiting> all, double now, bool asked) {
  std::string body = asked ? "{\"asked\":true,\"waiting\":[" : "{\"asked\":false,\"waiting\":[";
  for (size_t i = 0; i < all.size(); ++i) {
    const Negotiator::Waiting& one = all[i];
    char age[32];
    std::snprintf(age, sizeof age, "%.3f", now - one.announced);
    body += i ? ",{\"name\":" : "{\"name\":";
    append_json(&body, one.name);
    body += ",\"set\":" + std::to_string(one.set) + ",\"age\":" + age + ",\"ready\":";
    append(&body, one.ready);
    body += ",\"missing\":";
    append(&body, one.missing);
    body += '}';
  }
  body += "]}";
  put(Topic::waiting, std::move(body));
}

void Mailbox::unnoticed(std::string_view text, std::span<const int> silent) {
  std::string body = "{\"text\":";
  append_json(&body, text);
  body += ",\"silent\":";
  append(&body, silent);
  body += '}';
  put(Topic::unnoticed, std::move(body));
}

}  // namespace hvd
