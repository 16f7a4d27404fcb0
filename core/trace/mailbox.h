// Brings what an engine's observers hear to a thread that may take its time: notes, and who waits for whom. An Observer.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "base/deadline.h"
#include "engine/notes.h"
#include "engine/observer.h"
#include "trace/topics.h"

namespace hvd {

class Mailbox final : public Observer, public std::enable_shared_from_this<Mailbox> {
 public:
  struct Letter {
    int from;
    uint32_t topic;
    std::string body;
  };
  // What comes while so many lie here unread is lost.
  static constexpr size_t kMost = 4096;

  // say: leaves a note, from within heard(). Where it is given, questions for the time are answered (trace/clock.h).
  explicit Mailbox(int rank, std::function<void(Note)> say = {}) : rank_(rank), say_(std::move(say)) {}

  // The next letter, waiting for it until `deadline`. False: none came, or the box is closed and empty.
  bool take(Letter* letter, Deadline deadline);
  // One from this rank to itself, for whoever reads.
  void put(Topic topic, std::string body) { put(Letter{rank_, static_cast<uint32_t>(topic), std::move(body)}); }
  // Nothing comes any more; wakes who waits.
  void close();
  bool closed() const;

  void heard(int from, uint32_t topic, std::string_view body) override;
  // As Topic::waiting: {"asked": bool, "waiting": [{"name", "set", "age", "ready": [ranks], "missing": [ranks]}, ...]}, ages in s.
  void waiting(std::span<const Negotiator::Waiting> all, double now, bool asked) override;
  // As Topic::unnoticed: {"text": ..., "silent": [ranks]}.
  void unnoticed(std::string_view text, std::span<const int> silent) override;
  // The job is over: closes the box.
  void ended(const Status&) override { close(); }

 private:
  void put(Letter letter);

  const int rank_;
  const std::function<void(Note)> say_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Letter> letters_;
  bool closed_ = false;
};

}  // namespace hvd
