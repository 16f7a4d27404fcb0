// Messages of the control plane, one structure per message. All payloads are encoded and decoded here. FrameType
// (engine/control.h) defines the routing.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agree/request.h"
#include "base/status.h"
#include "engine/control.h"

namespace hvd {

struct ReadyRequests {
  static constexpr FrameType kType = FrameType::request;
  uint64_t epoch;
  std::vector<Request> requests;
};

struct Decisions {
  static constexpr FrameType kType = FrameType::responses;
  uint64_t epoch;
  std::vector<Response> responses;
};

// Progress of a running schedule. ReadyUpTo: the sender is ready for all positions below `position`. GoUpTo: every rank is ready for them.
struct ReadyUpTo {
  static constexpr FrameType kType = FrameType::ready;
  uint64_t schedule, position;
};

struct GoUpTo {
  static constexpr FrameType kType = FrameType::go;
  uint64_t schedule, position;
};

// Messages that end a schedule. Revoke: a rank asks to leave it. Revoked: every rank leaves it at `position`.
struct Revoke {
  static constexpr FrameType kType = FrameType::revoke;
  uint64_t schedule;
  bool stuck;
};

struct Revoked {
  static constexpr FrameType kType = FrameType::revoked;
  uint64_t schedule, position;
};

// Message to rank 0 from a rank that has left a schedule and returned to negotiation in `epoch`.
struct Settled {
  static constexpr FrameType kType = FrameType::settled;
  uint64_t epoch;
};

// Keys of all operations that are waiting at rank 0. Sent when rank 0 reports a stall.
struct StalledKeys {
  static constexpr FrameType kType = FrameType::stalled;
  uint64_t epoch;
  std::vector<std::string> keys;
};

// End of the job. `executed` is the number of operations in which the sender has taken part, in the order that all ranks share.
// `why.rank()` is the rank that caused the end, or -1. For a goodbye, it is the sender.
struct Goodbye {
  static constexpr FrameType kType = FrameType::bye;
  uint64_t executed;
  Status why;
};

// Messages between observers of different ranks (MessageBus). The engine does not read their text.
struct ObserverMessageUp {
  static constexpr FrameType kType = FrameType::observer_message_up;
  uint32_t topic;
  std::string body;
};

struct ObserverMessageDown {
  static constexpr FrameType kType = FrameType::observer_message_down;
  // Rank that receives the message, or -1 for all ranks.
  int32_t to;
  uint32_t topic;
  std::string body;
};

struct Abort {
  static constexpr FrameType kType = FrameType::abort;
  uint64_t executed;
  Status why;
};

using Message = std::variant<ReadyRequests, Decisions, ReadyUpTo, GoUpTo, Revoke, Revoked, Settled, StalledKeys, ObserverMessageUp,
                             ObserverMessageDown, Goodbye, Abort>;

// Encode the payload of a frame of type Message::kType.
std::string payload_of(const Message& message);
// Decode a frame. Return nullopt if its payload is not a valid output of payload_of().
std::optional<Message> message_in(const Frame& frame);

template <class M>
void send_up(Control& control, M message) {
  control.send_up(M::kType, payload_of(std::move(message)));
}
template <class M>
void broadcast(Control& control, M message) {
  control.broadcast(M::kType, payload_of(std::move(message)));
}
template <class M>
void send_down(Control& control, M message, int child) {
  control.send_down(M::kType, payload_of(std::move(message)), child);
}
template <class M>
void flood(Control& control, M message) {
  control.flood(M::kType, payload_of(std::move(message)));
}

}  // namespace hvd
