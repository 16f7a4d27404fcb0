// Words in the memory that the ranks of a host share, which their GPUs write and await: so streams of different processes are ordered
// without an event, which could not be released when the process that was to record it is no more. A word is a counter of one rank's:
//
//   tell(w)       counts one further when this rank's stream comes to it; what is told is published at once, for those who will wait
//   await(r, w)   this rank's stream waits until rank r's counter has come to what was published when this was called
//   release()     all have come to all: streams go on over garbage, after the loss of a rank
//
// A wait has to be called behind the barrier that follows the other's tell(). Used with a Turn on the device.
#pragma once
#include <atomic>
#include <memory>

#include "devices/device.h"
#include "transport/segment.h"

namespace hvd {

class Words {
 public:
  static constexpr size_t kMost = 8;  // of each rank

  // Of a rank of the host. Ranks that are threads of this process share what the device has to know of the memory. May wait for the device.
  static Status open(std::shared_ptr<Segment> segment, const std::shared_ptr<Device>& device, int local_rank, std::unique_ptr<Words>* out);
  Words(const Words&) = delete;

  Status tell(size_t word, Device::Stream stream);
  Status await(int local_rank, size_t word, Device::Stream stream);
  // Again and again, as long as somebody waits: a stream that goes on may write what it was to write.
  void release() const;
  void release(int local_rank, size_t word) const;

 private:
  struct Registered;
  struct Counter {  // each in a line of its own
    alignas(64) std::atomic<uint32_t> reached;  // by the GPU
    alignas(64) std::atomic<uint32_t> told;  // by the host
  };
  Words(std::shared_ptr<const Registered> registered, int local_rank) : registered_(std::move(registered)), local_rank_(local_rank) {}
  Counter& counter(int local_rank, size_t word) const;
  std::byte* on_device(int local_rank, size_t word) const;

  const std::shared_ptr<const Registered> registered_;
  const int local_rank_;
};

}  // namespace hvd
