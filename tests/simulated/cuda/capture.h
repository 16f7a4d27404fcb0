// Captures of streams into graphs. A captured item is counted and never run: there are no graphs here, only the rules.
#pragma once

#include "driver.h"

namespace simcuda {

struct Stream;
struct Event;

struct Capture {
  int mode = kCaptureGlobal;
  uint64_t thread = 0;
  bool spoiled = false, ended = false;
};

void spoil(Capture& capture);

// Before an item goes to a stream: 0 with `noted` when it was captured, 901 in a spoiled one, 906 on a legacy stream that may not wait.
int capture_item(Stream& stream, bool& noted);

// For what is never allowed on a capturing stream, such as asking whether it is done: 0, or 900, 901, 906.
int capture_forbids(Stream& stream);

// Before a wait for an event: 0, or 901, 905 on a capturing stream.
int capture_wait(Stream& stream, const Event& event);

}  // namespace simcuda
