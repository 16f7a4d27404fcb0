// Primary contexts, and each thread's stack of current contexts.
#include "driver.h"
#include "events.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
namespace {

// No destructor: a thread may end after the process's exit handlers.
constexpr int kDepth = 64;
thread_local Context* stack[kDepth];
thread_local int depth = 0;

Context* find_context(CUcontext handle) {
  auto found = driver().contexts.find(handle);
  return found == driver().contexts.end() || !found->second->alive ? nullptr : found->second.get();
}

void end_context(Call& call, Context* context) {
  Driver& d = driver();
  call.wait([&] {
    for (auto& [handle, stream] : d.streams)
      if (stream->context == context && stream->completed < stream->submitted) return false;
    return true;
  });
  context->alive = false;
  d.primaries[context->device] = nullptr;
  for (auto& [handle, stream] : d.streams)
    if (stream->context == context) stream->destroyed = true;
  for (auto& [handle, event] : d.events)
    if (event->context == context) event->destroyed = true;
  free_all_of(context);
  d.changed.notify_all();
}

}  // namespace

Context* current_context() { return depth ? stack[depth - 1] : nullptr; }

uint64_t thread_number() {
  static std::atomic<uint64_t> last{0};
  thread_local uint64_t own = 0;
  if (!own) own = ++last;
  return own;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  SIMCUDA_CALL(cuDevicePrimaryCtxRetain, kUnsafe);
  if (!context) return kInvalidValue;
  if (!valid(device)) return kInvalidDevice;
  Driver& d = driver();
  Context*& primary = d.primaries[device];
  if (!primary) {
    auto created = std::make_unique<Context>();
    created->device = device;
    primary = created.get();
    d.contexts[primary] = std::move(created);
    primary->legacy = new_stream(primary, 0, 0);
    primary->legacy->legacy = true;
  }
  ++primary->retained;
  *context = primary;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  SIMCUDA_CALL(cuDevicePrimaryCtxRelease_v2, kEvenIfFaulty);
  if (!valid(device)) return kInvalidDevice;
  Context* primary = driver().primaries[device];
  if (!primary) return kInvalidContext;
  if (--primary->retained == 0) end_context(call, primary);
  return kSuccess;
}

int cuCtxPushCurrent_v2(CUcontext context) {
  SIMCUDA_CALL(cuCtxPushCurrent_v2, kEvenIfFaulty);
  Context* found = find_context(context);
  if (!found) return kInvalidContext;
  if (depth == kDepth) {
    violation("this thread has pushed " + std::to_string(kDepth) + " contexts and popped none");
    return kInvalidValue;
  }
  stack[depth++] = found;
  return kSuccess;
}

int cuCtxPopCurrent_v2(CUcontext* context) {
  SIMCUDA_CALL(cuCtxPopCurrent_v2, kEvenIfFaulty);
  if (!depth) return kInvalidContext;
  --depth;
  if (context) *context = stack[depth];
  return kSuccess;
}

int cuCtxGetCurrent(CUcontext* context) {
  SIMCUDA_CALL(cuCtxGetCurrent, kEvenIfFaulty);
  if (!context) return kInvalidValue;
  *context = current_context();
  return kSuccess;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIMCUDA_CALL(cuCtxGetStreamPriorityRange, kNeedsContext);
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return kSuccess;
}

}  // extern "C"

__attribute__((visibility("default"))) int simcuda_current_device(void) {
  Context* context = current_context();
  return context ? context->device : -1;
}
