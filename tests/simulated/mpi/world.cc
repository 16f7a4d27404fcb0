#include "world.h"

#include <sched.h>

#include <cstring>

#include "knobs.h"

namespace simmpi {

World& World::get() {
  static auto* const world = new World;
  return *world;
}

World::World() {
  const int fd = static_cast<int>(knob_number("WORLD", -1));
  if (fd >= 0) {
    rank_ = static_cast<int>(knob_number("RANK", 0));
    size_ = static_cast<int>(knob_number("SIZE", 1));
  }
  if (size_ < 1 || size_ > kMostRanks || rank_ < 0 || rank_ >= size_) mistake("SIMMPI_RANK or SIMMPI_SIZE does not fit");
  const int flags = fd >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
  void* memory = ::mmap(nullptr, kWorldBytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) mistake("SIMMPI_WORLD cannot be mapped");
  memory_ = static_cast<std::byte*>(memory);
  control_ = static_cast<Control*>(memory);  // zeros are a valid initial state, except for the counter of contexts
}

Exchange* World::join(uint64_t context, uint64_t number) {
  Control& c = *control_;
  while (c.lock.exchange(1)) ::sched_yield();
  Exchange *found = nullptr, *free = nullptr;
  for (Exchange& e : c.exchanges) {
    if (!e.used.load()) free = free ? free : &e;
    if (e.used.load() && e.context == context && e.number == number) found = &e;
  }
  if (!found && free) {
    found = free;
    found->context = context;
    found->number = number;
    for (Part& part : found->parts) part.posted.store(0);
    found->taken.store(0);
    found->used.store(1);
  }
  c.lock.store(0);
  if (!found) mistake("more operations at once than were thought of");
  return found;
}

std::byte* World::area(const Exchange* exchange, int rank) {
  return memory_ + kControlBytes + kAreaBytes * static_cast<size_t>((exchange - control_->exchanges) * kMostRanks + rank);
}

void World::post(Exchange* exchange, int rank, const void* data, size_t bytes) {
  if (bytes > kAreaBytes) mistake("more bytes than were thought of");
  if (bytes) std::memcpy(area(exchange, rank), data, bytes);
  exchange->parts[rank].bytes = bytes;
  exchange->parts[rank].posted.store(1);
}

bool World::complete(const Exchange* exchange, int members) {
  for (int i = 0; i < members; ++i) {
    if (!exchange->parts[i].posted.load()) return false;
  }
  return true;
}

void World::leave(Exchange* exchange, int members) {
  if (exchange->taken.fetch_add(1) + 1 == static_cast<uint32_t>(members)) exchange->used.store(0);
}

}  // namespace simmpi
