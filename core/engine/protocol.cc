#include "engine/protocol.h"

#include "base/wire.h"

namespace hvd {
namespace {

struct Writing {
  std::string* out;
  Writer w{out};

  void operator()(const ReadyRequests& m) {
    w.put(m.epoch);
    encode(m.requests, out);
  }
  void operator()(const Decisions& m) {
    w.put(m.epoch);
    encode(m.responses, out);
  }
  void operator()(const ReadyUpTo& m) { put(m.schedule, m.position); }
  void operator()(const GoUpTo& m) { put(m.schedule, m.position); }
  void operator()(const Revoke& m) { put(m.schedule, m.stuck); }
  void operator()(const Revoked& m) { put(m.schedule, m.position); }
  void operator()(const Settled& m) { put(m.epoch); }
  void operator()(const StalledKeys& m) { put(m.epoch, m.keys); }
  void operator()(const ObserverMessageUp& m) { put(m.topic, m.body); }
  void operator()(const ObserverMessageDown& m) { put(m.to, m.topic, m.body); }
  void operator()(const Goodbye& m) { put(m.executed, m.why.code(), m.why.message()); }
  void operator()(const Abort& m) { put(m.executed, m.why.code(), m.why.message(), static_cast<int32_t>(m.why.rank())); }

  template <class... Values>
  void put(const Values&... values) {
    (w.put(values), ...);
  }
};

class Reading {
 public:
  explicit Reading(const Frame& frame)
      : origin_(frame.origin), end_(frame.payload.data() + frame.payload.size()), r_(frame.payload.data(), end_) {}

  std::optional<Message> message(FrameType type) {
    switch (type) {
      case FrameType::request: return list<ReadyRequests, Request>();
      case FrameType::responses: return list<Decisions, Response>();
      case FrameType::ready: return pair<ReadyUpTo, uint64_t>();
      case FrameType::go: return pair<GoUpTo, uint64_t>();
      case FrameType::revoke: return pair<Revoke, bool>();
      case FrameType::revoked: return pair<Revoked, uint64_t>();
      case FrameType::stalled: return pair<StalledKeys, std::vector<std::string>>();
      case FrameType::settled: return whole(Settled{first()});
      case FrameType::observer_message_up: return observer_message_up();
      case FrameType::observer_message_down: return observer_message_down();
      case FrameType::bye: return shutdown_state<Goodbye>();
      case FrameType::abort: return shutdown_state<Abort>();
      // The control plane handles acknowledgements itself; they have no payload.
      case FrameType::ack: break;
    }
    return std::nullopt;
  }

 private:
  std::optional<Message> whole(Message m) const { return r_.ok() ? std::optional(std::move(m)) : std::nullopt; }
  uint64_t first() {
    uint64_t number = 0;
    r_.get(&number);
    return number;
  }
  template <class M, class Second>
  std::optional<Message> pair() {
    const uint64_t number = first();
    Second second{};
    r_.get(&second);
    return whole(M{number, std::move(second)});
  }
  template <class M, class Element>
  std::optional<Message> list() {
    const uint64_t epoch = first();
    std::vector<Element> elements;
    const char* at = r_.at();
    if (!r_.ok() || !decode(&at, end_, &elements)) return std::nullopt;
    return M{epoch, std::move(elements)};
  }
  std::optional<Message> observer_message_up() {
    ObserverMessageUp message{};
    r_.get(&message.topic);
    r_.get(&message.body);
    return whole(std::move(message));
  }
  std::optional<Message> observer_message_down() {
    ObserverMessageDown message{};
    r_.get(&message.to);
    r_.get(&message.topic);
    r_.get(&message.body);
    return whole(std::move(message));
  }
  template <class M>
  std::optional<Message> shutdown_state() {
    const uint64_t executed = first();
    Code code = Code::ok;
    std::string text;
    int32_t reason = origin_;
    r_.get(&code, Code::internal);
    r_.get(&text);
    if (M::kType == FrameType::abort) r_.get(&reason);
    if (M::kType == FrameType::bye) code = Code::shutdown;
    return whole(M{executed, Status(code == Code::ok ? Code::internal : code, std::move(text), reason)});
  }

  const int32_t origin_;
  const char* end_;
  Reader r_;
};

}  // namespace

std::string payload_of(const Message& message) {
  std::string payload;
  std::visit(Writing{&payload}, message);
  return payload;
}

std::optional<Message> message_in(const Frame& frame) { return Reading(frame).message(frame.type); }

}  // namespace hvd
