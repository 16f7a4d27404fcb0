// Captures of streams into graphs. A captured item is counted and never run: only CUDA's rules are simulated,
// not graphs.
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

// Called before an item goes to a stream: 0 with `noted` if it was captured, 901 in an invalidated capture,
// 906 on a legacy stream that may not wait.
int capture_item(Stream& stream, bool& noted);

// For calls that are never allowed on a capturing stream, such as queries whether it is done: 0, or 900, 901,
// 906.
int capture_forbids(Stream& stream);

// Called before a wait for an event: 0, or 901, 905 on a capturing stream.
int capture_wait(Stream& stream, const Event& event);

}  // namespace simcuda
