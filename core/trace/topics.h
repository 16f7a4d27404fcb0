// What notes are about (Note::topic). Python knows these numbers by the names TOPIC_* of horovod._core.
#pragma once
#include <cstdint>

namespace hvd {

enum class Topic : uint32_t {
  waiting = 1,  // never travels: Mailbox's form of Observer::waiting()
  python = 2,   // between Python's halves of telemetry (horovod/common/telemetry), JSON
};

}  // namespace hvd
