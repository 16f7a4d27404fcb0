#include "streams.h"

#include <chrono>
#include <thread>

#include "capture.h"
#include "running.h"

namespace simcuda {
namespace {

using Lock = std::unique_lock<std::mutex>;
using Microseconds = std::chrono::microseconds;

bool over(const Driver& d) { return d.exited || d.sticky; }

// Work never runs within the call, nor at a predictable time.
void delay(Stream& stream, Lock& lock) {
  const int64_t most = knobs().delay_us;
  if (most <= 0) return;
  const uint64_t draw = stream.random();
  if (draw % 4 < 2) return;
  const auto pause = Microseconds((draw >> 8) % static_cast<uint64_t>(most) * (draw % 64 == 63 ? 10 : 1));
  lock.unlock();
  std::this_thread::sleep_for(pause);
  lock.lock();
}

bool is_ready(const Item& item) {
  for (auto& [stream, count] : item.after)
    if (stream->completed < count) return false;
  return !item.ready || item.ready();
}

// False if the process ends or has a sticky error first.
bool wait_until_ready(const Item& item, Lock& lock) {
  Driver& d = driver();
  Microseconds pause{50};
  const auto longer = [&] { pause = std::min(pause * 2, Microseconds(1000)); };
  for (; !over(d) && !is_ready(item); longer()) d.changed.wait_for(lock, pause);
  for (pause = Microseconds(20); item.poll && !over(d); longer()) {
    lock.unlock();
    const bool met = item.poll();
    if (!met) std::this_thread::sleep_for(pause);
    lock.lock();
    if (met) break;
  }
  return !over(d);
}

void learn(Stream& stream, const Item& item) {
  stream.clock.join(item.known);
  for (auto& [other, count] : item.after) stream.clock.join(other->clock);
  if (item.poll) stream.clock.join(complete_clock());
  if (item.learn) item.learn(stream.clock);
}

void run(Stream& stream, const Item& item, Lock& lock) {
  stream.running = item.name;
  lock.unlock();
  int error = 0;
  {
    Running running(&stream, item.name, item.work);
    error = item.run();
  }
  lock.lock();
  stream.running = nullptr;
  if (error) fault(error);
}

void loop(Stream* stream) {
  Driver& d = driver();
  Lock lock(d.mutex);
  for (;;) {
    d.changed.wait(lock, [&] { return !stream->queue.empty() || stream->destroyed || d.exited; });
    if (d.exited || stream->queue.empty()) break;
    delay(*stream, lock);
    Item& item = stream->queue.front();
    const bool ready = wait_until_ready(item, lock);
    if (ready) {
      learn(*stream, item);
      if (item.run) run(*stream, item, lock);
    }
    if (d.exited) break;
    stream->clock.reach(stream->number, ++stream->completed);
    if (ready && item.done) item.done();
    stream->queue.pop_front();
    d.changed.notify_all();
  }
  --d.stream_threads;
  d.changed.notify_all();
}

// The legacy stream waits for all blocking streams of its context, and they for it.
void order_with_legacy(Stream& stream, Item& item) {
  if (stream.legacy) {
    for (auto& [handle, other] : driver().streams)
      if (other->context == stream.context && other->blocking() && other->completed < other->submitted)
        item.after.emplace_back(other.get(), other->submitted);
  } else if (stream.blocking()) {
    Stream* legacy = stream.context->legacy;
    if (legacy->completed < legacy->submitted) item.after.emplace_back(legacy, legacy->submitted);
  }
}

// Complete work is no dependency, but it is ordered before.
void know_legacy(const Stream& stream, Clock& known) {
  if (stream.legacy) {
    for (auto& [handle, other] : driver().streams)
      if (other->context == stream.context && other->blocking()) known.reach(other->number, other->completed);
  } else if (stream.blocking()) {
    known.join(stream.context->legacy->clock);
  }
}

}  // namespace

Stream* new_stream(Context* context, unsigned flags, int priority) {
  Driver& d = driver();
  auto created = std::make_unique<Stream>();
  Stream* stream = created.get();
  stream->context = context;
  stream->flags = flags;
  stream->priority = priority;
  stream->number = d.streams.size();
  stream->random.seed(mix(seed_of_process() ^ stream->number));
  d.streams[stream] = std::move(created);
  return stream;
}

Stream* find_stream(CUstream handle, Context* context, int& error) {
  Driver& d = driver();
  const auto number = reinterpret_cast<uint64_t>(handle);
  if (number <= 1) return context->legacy;
  if (number == 2) {
    Stream*& own = d.thread_streams[{thread_number(), context}];
    if (!own) own = new_stream(context, 0, 0);
    return own;
  }
  auto found = d.streams.find(handle);
  if (found != d.streams.end() && !found->second->destroyed && found->second->context->alive) return found->second.get();
  error = kInvalidHandle;
  return nullptr;
}

int submit(Stream& stream, Item item) {
  Driver& d = driver();
  bool noted = false;
  if (int error = capture_item(stream, noted)) return error;
  if (noted) return kSuccess;
  item.known = host_clock();
  order_with_legacy(stream, item);
  know_legacy(stream, item.known);
  stream.queue.push_back(std::move(item));
  ++stream.submitted;
  if (!stream.started) {
    stream.started = true;
    ++d.stream_threads;
    std::thread(loop, &stream).detach();
  }
  d.changed.notify_all();
  return kSuccess;
}

}  // namespace simcuda
