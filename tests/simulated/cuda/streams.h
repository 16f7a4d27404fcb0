// Streams: queues of work, each run in order by its own thread.
#pragma once

#include <deque>
#include <random>

#include "driver.h"
#include "races.h"
#include "running.h"

namespace simcuda {

struct Item {
  const char* name;
  std::function<bool()> ready{};  // called with the lock; null: at once
  std::function<bool()> poll{};  // polled without the lock; null: at once
  std::function<int()> run{};  // without the lock; not 0: a sticky error
  std::function<void()> done{};  // with the lock, when the item completes
  std::function<void(Clock&)> learn{};  // adds other work that happened before it, once it is ready
  Work work = Work::kOwn;
  std::vector<std::pair<Stream*, uint64_t>> after{};  // positions that other streams must have reached
  Clock known{};  // work that the host had seen complete at the call
};

struct Stream {
  Context* context = nullptr;
  size_t number = 0;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false, destroyed = false, started = false;
  const char* running = nullptr;  // name of the running item, or null
  std::deque<Item> queue;
  uint64_t submitted = 0, completed = 0;
  Clock clock;
  std::shared_ptr<Capture> capture;
  std::mt19937_64 random;

  bool blocking() const { return !legacy && !(flags & kStreamNonBlocking); }
};

// The stream of a handle for this thread; null with `error` set for an invalid handle.
Stream* find_stream(CUstream handle, Context* context, int& error);

// Appends an item, or records it if the stream is capturing. Returns 0, or a capture error. Needs the lock.
int submit(Stream& stream, Item item);

Stream* new_stream(Context* context, unsigned flags, int priority);

}  // namespace simcuda
