// Topics of observer messages (ObserverMessage::topic). Python knows these numbers as TOPIC_* of horovod._core.
#pragma once
#include <cstdint>

namespace hvd {

enum class Topic : uint32_t {
  waiting = 1,  // Only local: Observer::waiting() as a message in a Mailbox.
  python = 2,   // JSON between the Python parts of telemetry (src/horovod/common/telemetry).
  explain = 3,  // Rank 0 asks what the ranks do, see Question (trace/answer.h).
  answer = 4,   // Answer of an Answerer as JSON.
  stacks = 5,   // Only local: an Answerer asks Python for its stacks; the body is the number of the question.
  unnoticed = 6,  // Only local: Observer::unnoticed() as a message in a Mailbox.
  // A question to rank 0 for the time, and its answer (trace/clock.h). The question contains the time on the asker's
  // clock; the answer adds the time on rank 0's clock.
  clock_ask = 16,
  clock_told = 17,
};

}  // namespace hvd
