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

int capture_wait(Stream& stream, const Event& event) {
  if (event.captured && !event.captured->ended) violation("a stream that joins a capture is not simulated");
  if (!stream.capture || event.state->recorded == 0) return kSuccess;
  if (stream.capture->spoiled) return kCaptureInvalidated;
  spoil(*stream.capture);
  return kCaptureIsolation;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuStreamBeginCapture_v2(CUstream handle, int mode) {
  SIMCUDA_CALL(cuStreamBeginCapture_v2, kNeedsContext);
  if (mode < kCaptureGlobal || mode > kCaptureRelaxed) return kInvalidValue;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (stream->legacy) return kCaptureUnsupported;
  if (stream->capture) {
    spoil(*stream->capture);
    return kInvalidValue;
  }
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = thread_number();
  stream->capture = capture;
  driver().captures.push_back(capture);
  return kSuccess;
}

int cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  SIMCUDA_CALL(cuStreamEndCapture, kNeedsContext);
  if (!graph) return kInvalidValue;
  *graph = nullptr;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  auto capture = stream->capture;
  if (!capture) return kInvalidValue;
  if (capture->mode != kCaptureRelaxed && capture->thread != thread_number()) {
    spoil(*capture);
    return kCaptureWrongThread;
  }
  capture->ended = true;
  stream->capture.reset();
  if (capture->spoiled) return kCaptureInvalidated;
  static int nothing_to_launch;  // no function here takes a graph
  *graph = &nothing_to_launch;
  return kSuccess;
}

int cuStreamIsCapturing(CUstream handle, int* status) {
  SIMCUDA_CALL(cuStreamIsCapturing, kNeedsContext);
  if (!status) return kInvalidValue;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (stream->legacy && in_the_way(*stream)) return kCaptureImplicit;  // queries invalidate nothing
  *status = !stream->capture ? 0 : stream->capture->spoiled ? 2 : 1;
  return kSuccess;
}

int cuThreadExchangeStreamCaptureMode(int* mode) {
  SIMCUDA_CALL(cuThreadExchangeStreamCaptureMode, kEvenIfFaulty);
  if (!mode || *mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, capture_mode);
  return kSuccess;
}

}  // extern "C"
