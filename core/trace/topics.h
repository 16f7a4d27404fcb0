// What notes are about (Note::topic). Python knows these numbers by the names TOPIC_* of horovod._core.
#pragma once
#include <cstdint>

namespace hvd {

enum class Topic : uint32_t {
  waiting = 1,  // never travels: Mailbox's form of Observer::waiting()
  python = 2,   // between Python's halves of telemetry (horovod/common/telemetry), JSON
  explain = 3,  // rank 0 asks what ranks do, see Question (trace/answer.h)
  answer = 4,   // what an Answerer says to that, JSON
  stacks = 5,   // never travels: an Answerer asks Python for its stacks; the body is the number of the question
  unnoticed = 6,  // never travels: Mailbox's form of Observer::unnoticed()
  // What time is it at rank 0? (trace/clock.h). Three of: the asker's clock when it asked; in the answer also rank 0's when it answered.
  clock_ask = 16,
  clock_told = 17,
};

}  // namespace hvd
