// Race detection by vector clocks: whether accesses to the same memory on different streams are ordered.
//
// A clock holds for each stream how many of its items happened before. Copies and memsets declare reads and
// writes; kernels count as writers of changed bytes (running.cc). Ordering by other processes is assumed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace simcuda {

struct Stream;
struct Allocation;
enum class Access;

struct Clock {
  std::vector<uint64_t> items;  // by the stream's number
  uint64_t of(size_t stream) const { return stream < items.size() ? items[stream] : 0; }
  void reach(size_t stream, uint64_t item);
  void join(const Clock& other);
};

// All of these need the lock. Records an access by the item that this stream currently runs.
void note_access(Stream& stream, const char* name, const Allocation& allocation, size_t offset, size_t bytes, Access access);
void forget_accesses(const Allocation& allocation);

// Work that the host has seen to be complete, in any thread.
Clock& host_clock();

// All complete work, which other processes may have seen.
Clock complete_clock();

}  // namespace simcuda
