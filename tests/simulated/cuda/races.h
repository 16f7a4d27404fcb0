// Whether work on different streams that uses the same memory is ordered, by vector clocks.
//
// A clock says of each stream how many of its items happened before. Copies and memsets say what they read and write; kernels write where
// bytes are others afterwards (running.cc). What other processes order is taken as ordered.
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

// All with the lock. An access by the item that this stream runs now.
void note_access(Stream& stream, const char* name, const Allocation& allocation, size_t offset, size_t bytes, Access access);
void forget_accesses(const Allocation& allocation);

// What the host has seen to be complete, in any thread.
Clock& host_clock();

// Everything that is complete: what somebody outside of this process may have seen.
Clock complete_clock();

}  // namespace simcuda
