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
};

}  // namespace hvd
