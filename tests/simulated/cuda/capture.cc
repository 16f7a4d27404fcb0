#include "capture.h"

#include "events.h"
#include "streams.h"

namespace simcuda {

thread_local int capture_mode = kCaptureGlobal;

namespace {

std::vector<std::shared_ptr<Capture>> ongoing() {
  std::vector<std::shared_ptr<Capture>> all;
  for (auto& weak : driver().captures)
    if (auto capture = weak.lock(); capture && !capture->ended) all.push_back(capture);
  return all;
}

// The capture of a blocking stream that work on the legacy stream would have to wait for.
std::shared_ptr<Capture> in_the_way(const Stream& legacy) {
  for (auto& [handle, stream] : driver().streams)
    if (stream->context == legacy.context && stream->blocking() && stream->capture) return stream->capture;
  return nullptr;
}

}  // namespace

void spoil(Capture& capture) { capture.spoiled = true; }

int unsafe_call(const char*) {
  if (capture_mode == kCaptureRelaxed) return kSuccess;
  bool forbidden = false;
  for (auto& capture : ongoing()) {
    const bool here = capture->thread == thread_number();
    const bool counts = here ? capture->mode != kCaptureRelaxed : capture_mode == kCaptureGlobal && capture->mode == kCaptureGlobal;
    if (!counts) continue;
    spoil(*capture);
    forbidden = true;
  }
  return forbidden ? kCaptureUnsupported : kSuccess;
}

int capture_item(Stream& stream, bool& noted) {
  if (stream.capture) {
    if (stream.capture->spoiled) return kCaptureInvalidated;
    ++stream.captured_nodes;
    noted = true;
    return kSuccess;
  }
  if (!stream.legacy) return kSuccess;
  if (auto capture = in_the_way(stream)) {
    spoil(*capture);
    return kCaptureImplicit;
  }
  return kSuccess;
}

int capture_forbids(Stream& stream) {
  if (stream.capture) {
    if (stream.capture->spoiled) return kCaptureInvalidated;
    spoil(*stream.capture);
    return kCaptureUnsupported;
  }
  auto capture = stream.legacy ? in_the_way(stream) : nullptr;
  if (!capture) return kSuccess;
  spoil(*capture);
  return kCaptureImplicit;
}

int capture_wait(Stream& stream, Event& event, bool& joined) {
  const std::shared_ptr<Capture> theirs = event.captured && !event.captured->ended ? event.captured : nullptr;
  if (event.captured && !theirs) return kInvalidValue;  // its graph is finished: it stands for nothing any more
  if (!theirs && !stream.capture) return kSuccess;
  if (stream.capture && stream.capture->spoiled) return kCaptureInvalidated;
  if (theirs && theirs->spoiled) return kCaptureInvalidated;
  if (!theirs) {
    if (event.state->recorded == 0) return kSuccess;
    spoil(*stream.capture);
    return kCaptureIsolation;
  }
  if (stream.legacy) {
    spoil(*theirs);
    return kCaptureImplicit;
  }
  if (stream.capture && stream.capture != theirs) {
    spoil(*stream.capture);
    spoil(*theirs);
    return kCaptureMerge;
  }
  joined = true;
  if (!stream.capture) {
    stream.capture = theirs;
    stream.captured_nodes = 0;
    theirs->unjoined[&stream] = 0;
  }
  ++stream.captured_nodes;
  if (&stream == theirs->origin && event.captured_on != theirs->origin) {
    uint64_t& reached = theirs->unjoined[event.captured_on];
    reached = std::max(reached, event.captured_nodes);
  }
  return kSuccess;
}

namespace {

int end_capture(Stream& stream, Capture& capture) {
  int error = capture.spoiled ? kCaptureInvalidated : kSuccess;
  for (auto& [other, nodes] : capture.unjoined)
    if (!error && nodes < other->captured_nodes) error = kCaptureUnjoined;
  capture.ended = true;
  for (auto& [other, nodes] : capture.unjoined) other->capture.reset();
  stream.capture.reset();
  return error;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuStreamBeginCapture_v2(CUstream handle, int mode) {
  Call call("cuStreamBeginCapture_v2", kNeedsContext);
  if (call.error) return call.error;
  if (mode < kCaptureGlobal || mode > kCaptureRelaxed) return kInvalidValue;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (stream->legacy) return kCaptureUnsupported;
  if (stream->capture) {
    spoil(*stream->capture);
    return kInvalidValue;
  }
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = thread_number();
  stream->capture = capture;
  stream->captured_nodes = 0;
  driver().captures.push_back(capture);
  return kSuccess;
}

int cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  Call call("cuStreamEndCapture", kNeedsContext);
  if (call.error) return call.error;
  if (!graph) return kInvalidValue;
  *graph = nullptr;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  auto capture = stream->capture;
  if (!capture) return kInvalidValue;
  if (capture->origin != stream) {
    spoil(*capture);
    return kCaptureUnmatched;
  }
  if (capture->mode != kCaptureRelaxed && capture->thread != thread_number()) {
    spoil(*capture);
    return kCaptureWrongThread;
  }
  if (int error = end_capture(*stream, *capture)) return error;
  static int nothing_to_launch;  // no function here takes a graph
  *graph = &nothing_to_launch;
  return kSuccess;
}

int cuStreamIsCapturing(CUstream handle, int* status) {
  Call call("cuStreamIsCapturing", kNeedsContext);
  if (call.error) return call.error;
  if (!status) return kInvalidValue;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (stream->legacy && in_the_way(*stream)) return kCaptureImplicit;  // asking spoils nothing
  *status = !stream->capture ? 0 : stream->capture->spoiled ? 2 : 1;
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  Call call("cuThreadExchangeStreamCaptureMode", kEvenIfFaulty);
  if (call.error) return call.error;
  if (!mode || *mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

}  // extern "C"
