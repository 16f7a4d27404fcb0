// Streams: queues of work, each run in order by a thread of its own.
#pragma once

#include <deque>
#include <random>

#include "driver.h"
#include "races.h"
#include "running.h"

namespace simcuda {

struct Item {
  const char* name;
  std::function<bool()> ready{};                      // asked under the lock; null: at once
  std::function<bool()> poll{};                       // asked without the lock, again and again; null: at once
  std::function<int()> run{};                         // without the lock; not 0: a sticky error
  std::function<void()> done{};                       // under the lock, at the moment at which the item is complete
  std::function<void(Clock&)> learn{};                // what happened before it besides, once it is ready
  Work work = Work::kOwn;
  std::vector<std::pair<Stream*, uint64_t>> after{};  // how far other streams must have come
  Clock known{};                                      // what the host had seen when it called
};

struct Stream {
  Context* context = nullptr;
  size_t number = 0;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false, destroyed = false, started = false;
  const char* running = nullptr;  // name of the item that runs, or null
  std::deque<Item> queue;
  uint64_t submitted = 0, completed = 0;
  Clock clock;
  std::shared_ptr<Capture> capture;
  std::mt19937_64 random;

  bool blocking() const { return !legacy && !(flags & kStreamNonBlocking); }
};

// The stream that a handle means for this thread; null with `error` set for one that is none.
Stream* find_stream(CUstream handle, Context* context, int& error);

// Appends an item, or notes it when the stream captures. 0, or an error of captures. With the lock.
int submit(Stream& stream, Item item);

Stream* new_stream(Context* context, unsigned flags, int priority);

}  // namespace simcuda
