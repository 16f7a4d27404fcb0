// CUDA functions that create, query and destroy streams, and simcuda_enqueue.
#include <algorithm>

#include "capture.h"
#include "streams.h"

using namespace simcuda;

extern "C" {

int cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  SIMCUDA_CALL(cuStreamCreateWithPriority, kNeedsContext);
  if (!stream || (flags & ~kStreamNonBlocking)) return kInvalidValue;
  *stream = new_stream(call.context, flags, std::clamp(priority, -5, 0));
  return kSuccess;
}

int cuStreamDestroy_v2(CUstream handle) {
  SIMCUDA_CALL(cuStreamDestroy_v2, kNeedsContext);
  if (reinterpret_cast<uint64_t>(handle) <= 2) return kInvalidHandle;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (stream->capture) spoil(*stream->capture);
  stream->destroyed = true;  // submitted work is still executed
  driver().changed.notify_all();
  return kSuccess;
}

}  // extern "C"

__attribute__((visibility("default"))) void simcuda_enqueue(void* handle, void (*work)(void*), void* argument, int (*ready)(void*)) {
  Call call("simcuda_enqueue", kNeedsContext);
  Stream* stream = call.error ? nullptr : find_stream(handle, call.context, call.error);
  if (!stream) {
    if (call.error != driver().sticky) violation("simcuda_enqueue fails with " + std::to_string(call.error));
    return;
  }
  Item item{.name = "external work", .work = Work::kExternal};
  if (ready) item.poll = [=] { return ready(argument) != 0; };
  item.run = [=] {
    work(argument);
    return 0;
  };
  if (int error = submit(*stream, std::move(item)))
    if (error != kCaptureInvalidated) violation("simcuda_enqueue fails with " + std::to_string(error));
}
