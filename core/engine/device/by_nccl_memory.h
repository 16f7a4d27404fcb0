// Pool of internal memory that NCCL reads and writes: zeros of a rank that has joined, and results whose size is known
// late. It is device memory or, if the device has none left, pinned host memory, which NCCL's kernels also reach,
// slowly. Each rank decides this independently.
//
// Allocation may wait for all work on the device, including NCCL kernels, which wait for other ranks. These arrive:
// operations are launched in one order, so the first one that some rank has not launched waits only for operations that
// all have launched. (Kernels of foreign communicators do not follow this order.) Blocks are kept for reuse until the
// end: freeing waits for the device, and so for kernels that wait for a lost rank, which this thread could then not
// abort.
//
// Call with a Turn on the device.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "devices/device.h"

namespace hvd {

class GpuMemory : public std::enable_shared_from_this<GpuMemory> {
 public:
  // `log`: receives one warning when the device runs out of memory.
  explicit GpuMemory(std::shared_ptr<Device> device, LogSink log = {}) : device_(std::move(device)), log_(std::move(log)) {}
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;

  class Block {
   public:
    Block(std::shared_ptr<GpuMemory> pool, std::byte* data, size_t bytes, bool pinned)
        : pool_(std::move(pool)), data_(data), bytes_(bytes), pinned_(pinned) {}
    ~Block() { pool_->give_back(data_, bytes_, pinned_); }
    Block(const Block&) = delete;
    std::byte* data() const { return data_; }

   private:
    const std::shared_ptr<GpuMemory> pool_;
    std::byte* const data_;
    const size_t bytes_;  // bytes of its size class
    const bool pinned_;
  };

  // Take at least `bytes` bytes, contents undefined. Release the block only when nothing uses it any more, or only the
  // stream on which the next user will run.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  size_t pinned() const { return pinned_; }  // bytes of pinned host memory, in use or not

 private:
  using Free = std::map<size_t, std::vector<std::byte*>>;  // free blocks by size
  std::byte* take_free(size_t most, size_t* size, bool* is_pinned);
  void give_back(std::byte* data, size_t bytes, bool pinned);
  Status pin(size_t bytes, std::byte** data);

  const std::shared_ptr<Device> device_;
  const LogSink log_;
  bool warned_ = false;
  std::mutex mutex_;  // blocks are returned from any thread
  Free free_, free_pinned_;
  size_t pinned_ = 0;
};

}  // namespace hvd
