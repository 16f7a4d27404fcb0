#include "trace/mailbox.h"

#include <cstdio>

#include "base/json.h"
#include "trace/clock.h"

namespace hvd {

bool Mailbox::take(Letter* letter, Deadline deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline.when(), [this] { return closed_ || !letters_.empty(); });
  if (letters_.empty()) return false;
  *letter = std::move(letters_.front());
  letters_.pop_front();
  return true;
}

void Mailbox::received(int from, uint32_t topic, std::string_view body) {
  // Ignore rank 0's answer about its clock, which is for the observer that asked.
  if (topic == static_cast<uint32_t>(Topic::clock_told)) return;
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
    if (closed_ || letters_.size() >= kMax) return;
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
  std::string body = "{";
  append_member(&body, "asked", asked);
  append_name(&body, "waiting");
  body += '[';
  for (size_t i = 0; i < all.size(); ++i) {
    const Negotiator::Waiting& one = all[i];
    char age[32];
    std::snprintf(age, sizeof age, "%.3f", now - one.requested);
    body += i ? ",{" : "{";
    append_member(&body, "name", one.name);
    append_member(&body, "set", one.set);
    append_name(&body, "age");
    body += age;
    append_list(&body, "ready", one.ready);
    append_list(&body, "missing", one.missing);
    body += '}';
  }
  body += "]}";
  put(Topic::waiting, std::move(body));
}

void Mailbox::unnoticed(std::string_view text, std::span<const int> silent) {
  std::string body = "{";
  append_member(&body, "text", text);
  append_list(&body, "silent", silent);
  body += '}';
  put(Topic::unnoticed, std::move(body));
}

}  // namespace hvd
