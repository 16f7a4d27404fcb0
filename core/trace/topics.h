// Topics of observer messages (ObserverMessage::topic). Python knows these numbers as TOPIC_* of horovod._core.
#pragma once
#include <cstdint>

namespace hvd {

enum class Topic : uint32_t {
  waiting = 1,  // Local only: Observer::waiting() as a Mailbox message.
  python = 2,   // JSON between the Python parts of telemetry (src/horovod/common/telemetry).
  explain = 3,  // Rank 0 asks what ranks do, see Question (trace/answer.h).
  answer = 4,   // JSON answer of an Answerer.
  stacks = 5,   // Local only: an Answerer asks Python for its stacks; the body is the question's number.
  unnoticed = 6,  // Local only: Observer::unnoticed() as a Mailbox message.
  // Question to rank 0 for the time, and its answer (trace/clock.h). The question has the asker's clock; the answer
  // adds rank 0's clock.
  clock_ask = 16,
  clock_told = 17,
};

}  // namespace hvd
