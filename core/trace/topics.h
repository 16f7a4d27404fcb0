// Topics of observer messages (ObserverMessage::topic). In Python, horovod._core has these numbers as TOPIC_*.
#pragma once
#include <cstdint>

namespace hvd {

enum class Topic : uint32_t {
  // Report of waiting operations, which Observer::waiting() puts into this rank's own Mailbox. Never sent to another rank.
  waiting = 1,
  // JSON messages between the Python telemetry of the ranks (src/horovod/common/telemetry).
  python = 2,
  // Question from rank 0 about what other ranks are doing (Question in trace/answer.h).
  explain = 3,
  // Answer to rank 0's question about what this rank is doing, as JSON (see Answerer).
  answer = 4,
  // Request from the Answerer for this rank's Python stacks. Never sent to another rank. The body is the number of the request.
  stacks = 5,
  // Report of a long wait on this rank, which Observer::unnoticed() puts into its own Mailbox. Never sent to another rank.
  unnoticed = 6,
  // Request to rank 0 for the time of its clock, and the reply (trace/clock.h). The request contains the time of the
  // requesting rank's clock, and the reply adds the time of rank 0's clock.
  clock_ask = 16,
  clock_told = 17,
};

}  // namespace hvd
