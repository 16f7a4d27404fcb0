// Words in the host's shared memory that GPUs write and wait for, to order streams of different processes. Unlike
// events they can be released when the process that was to write them is gone. A word is a counter of one rank:
//
//   tell(w)       increment the counter when this rank's stream gets there; publish the new value at once, for waiters
//   await(r, w)   make this rank's stream wait until rank r's counter reaches the value published at the time of this call
//   release()     advance all counters after the loss of a rank, so that all streams continue, with invalid data
//
// A wait must be called after the barrier that follows the other rank's tell(). Call with a Turn on the device.
#pragma once
#include <atomic>
#include <memory>

#include "devices/device.h"
#include "transport/segment.h"

namespace hvd {

class Words {
 public:
  static constexpr size_t kMost = 8;  // maximum words per rank

  // Open the words of a rank of the host. Ranks that are threads of this process share the registration of the memory.
  // May wait for the device.
  static Status open(std::shared_ptr<Segment> segment, const std::shared_ptr<Device>& device, int local_rank, std::unique_ptr<Words>* out);
  Words(const Words&) = delete;

  Status tell(size_t word, Device::Stream stream);
  Status await(int local_rank, size_t word, Device::Stream stream);
  // Repeat while any stream waits, because a stream that continues may still write its word.
  void release() const;
  void release(int local_rank, size_t word) const;

 private:
  struct Registered;
  struct Counter {  // each counter is in a separate cache line
    alignas(64) std::atomic<uint32_t> reached;  // value written by the GPU
    alignas(64) std::atomic<uint32_t> told;  // value published by the host
  };
  Words(std::shared_ptr<const Registered> registered, int local_rank) : registered_(std::move(registered)), local_rank_(local_rank) {}
  Counter& counter(int local_rank, size_t word) const;
  std::byte* on_device(int local_rank, size_t word) const;

  const std::shared_ptr<const Registered> registered_;
  const int local_rank_;
};

}  // namespace hvd
