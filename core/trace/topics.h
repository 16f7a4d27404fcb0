// Topics of observer messages (ObserverMessage::topic). In Python, horovod._core has these numbers as TOPIC_*.
#pragma once
#include <cstdint>

namespace hvd {

enum class Topic : uint32_t {
  // Local only: Observer::waiting() as a message in a Mailbox.
  waiting = 1,
  // JSON between the Python parts of telemetry (src/horovod/common/telemetry).
  python = 2,
  // Question from rank 0 about the ranks' activity; see Question (trace/answer.h).
  explain = 3,
  // Answer to a question, as JSON (see Answerer).
  answer = 4,
  // Local only: an Answerer asks Python for its stacks. The body is the number of the question.
  stacks = 5,
  // Local only: Observer::unnoticed() as a message in a Mailbox.
  unnoticed = 6,
  // Question to rank 0 for the time, and its answer (trace/clock.h). The question contains the time on the asker's
  // clock; the answer adds the time on rank 0's clock.
  clock_ask = 16,
  clock_told = 17,
};

}  // namespace hvd
