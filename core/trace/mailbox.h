// Observer that queues messages of other ranks' observers, and reports of waiting operations, for a slow reader on another thread.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/deadline.h"
#include "engine/observer.h"
#include "engine/observers.h"
#include "trace/topics.h"

namespace hvd {

class Mailbox final : public Observer, public std::enable_shared_from_this<Mailbox> {
 public:
  struct Letter {
    int from;
    uint32_t topic;
    std::string body;
  };
  // Maximum number of unread messages. Further messages are dropped.
  static constexpr size_t kMax = 4096;

  // Create a mailbox. With `say`, it answers other ranks' requests for this rank's time (trace/clock.h); `say` sends the answers.
  explicit Mailbox(int rank, std::function<void(ObserverMessage)> say = {}) : rank_(rank), say_(std::move(say)) {}

  // Take the next message, waiting until `deadline`. Return false if no message arrived, or if the mailbox is closed
  // and empty.
  bool take(Letter* letter, Deadline deadline);
  // Add a message from this rank itself.
  void put(Topic topic, std::string body) { put(Letter{rank_, static_cast<uint32_t>(topic), std::move(body)}); }
  // Accept no more messages and wake the reader.
  void close();
  bool closed() const;

  void received(int from, uint32_t topic, std::string_view body) override;
  // Add a message of Topic::waiting, with ages in seconds: {"asked": bool, "waiting": [{"name", "set", "age", "ready":
  // [ranks], "missing": [ranks]}, ...]}
  void waiting(std::span<const Negotiator::Waiting> all, double now, bool asked) override;
  // Add a message of Topic::unnoticed about a long wait on this rank, which rank 0 has not reported: {"text": ..., "silent": [ranks]}.
  void unnoticed(std::string_view text, std::span<const int> silent) override;
  // Close the mailbox when the job is over.
  void ended(const Status&) override { close(); }

 private:
  void put(Letter letter);

  const int rank_;
  const std::function<void(ObserverMessage)> say_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Letter> letters_;
  bool closed_ = false;
};

}  // namespace hvd
