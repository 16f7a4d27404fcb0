#include "events.h"

#include "capture.h"
#include "memory.h"
#include "streams.h"

namespace simcuda {
void EventState::finish(uint64_t record) {
  std::atomic<uint64_t>& slot = done[record % kRecords];
  uint64_t before = slot;
  while (before < record && !slot.compare_exchange_weak(before, record)) {
  }
}

void Event::learn(uint64_t record, Clock& clock) const {
  const Known& then = known[record % EventState::kRecords];
  clock.join(then.record == record ? then.clock : complete_clock());
}

Event* find_event(CUevent handle, int& error) {
  Driver& d = driver();
  auto found = d.events.find(handle);
  if (found == d.events.end()) {
    error = kInvalidHandle;
    return nullptr;
  }
  if (found->second->destroyed) {
    violation("use of an event that was destroyed");
    error = kInvalidHandle;
    return nullptr;
  }
  return found->second.get();
}

Event* new_event(Context* context, unsigned flags) {
  auto created = std::make_unique<Event>();
  Event* event = created.get();
  event->context = context;
  event->flags = flags;
  driver().events[event] = std::move(created);
  return event;
}

namespace {

// For a query of an event, which a capture may forbid; null: call.error is set.
Event* event_to_ask(Call& call, CUevent handle) {
  if (call.error) return nullptr;
  Event* event = find_event(handle, call.error);
  if (!event) return nullptr;
  if (event->captured) {
    if (!event->captured->ended) spoil(*event->captured);
    call.error = kCapturedEvent;
  } else {
    call.error = unsafe_call(call.name);
  }
  return call.error ? nullptr : event;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuEventCreate(CUevent* event, unsigned flags) {
  SIMCUDA_CALL(cuEventCreate, kNeedsContext);
  if (!event || (flags & ~3U)) return kInvalidValue;  // no event is shared between processes
  *event = new_event(call.context, flags);
  return kSuccess;
}

int cuEventDestroy_v2(CUevent handle) {
  SIMCUDA_CALL(cuEventDestroy_v2, kNeedsContext);
  Event* event = find_event(handle, call.error);
  if (!event) return call.error;
  event->destroyed = true;
  return kSuccess;
}

int cuEventRecord(CUevent handle, CUstream stream_handle) {
  SIMCUDA_CALL(cuEventRecord, kNeedsContext);
  Event* event = find_event(handle, call.error);
  if (!event) return call.error;
  Stream* stream = find_stream(stream_handle, call.context, call.error);
  if (!stream) return call.error;
  if (event->context != stream->context) return kInvalidHandle;
  const bool captures = stream->capture != nullptr;
  const uint64_t record = captures ? 0 : ++event->state->recorded;
  auto finish = [event, state = event->state, record, stream] {
    Event::Known& known = event->known[record % EventState::kRecords];
    if (known.record <= record) known = {record, stream->clock};
    state->finish(record);
  };
  const auto takes_a_turn = [] { return 0; };
  if (int error = submit(*stream, {.name = "record of an event", .run = takes_a_turn, .done = finish})) {
    if (record) event->state->finish(record);
    return error;
  }
  event->captured = stream->capture;
  return kSuccess;
}

int cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
  SIMCUDA_CALL(cuStreamWaitEvent, kNeedsContext);
  if (flags & ~1U) return kInvalidValue;
  Event* event = find_event(handle, call.error);
  if (!event) return call.error;
  Stream* stream = find_stream(stream_handle, call.context, call.error);
  if (!stream) return call.error;
  if (int error = capture_wait(*stream, *event)) return error;
  // the current one: a later record does not change this wait; without a record there is no wait
  const uint64_t record = event->state->recorded;
  if (record == 0) return kSuccess;
  Item item{.name = "wait for an event"};
  item.ready = [state = event->state, record] { return state->is_done(record); };
  item.learn = [event, record](Clock& clock) { event->learn(record, clock); };
  return submit(*stream, std::move(item));
}

int cuEventQuery(CUevent handle) {
  Call call("cuEventQuery", kNeedsContext);
  Event* event = event_to_ask(call, handle);
  if (!event) return call.error;
  const uint64_t record = event->state->recorded;
  if (!event->state->is_done(record)) return kNotReady;
  if (record) event->learn(record, host_clock());
  return kSuccess;
}

int cuEventSynchronize(CUevent handle) {
  Call call("cuEventSynchronize", kNeedsContext);
  Event* event = event_to_ask(call, handle);
  if (!event) return call.error;
  const uint64_t record = event->state->recorded;
  if (int error = call.wait([&] { return event->state->is_done(record); })) return error;
  if (record) event->learn(record, host_clock());
  return kSuccess;
}

}  // extern "C"
