// Pool of a device's pinned memory, kept between operations, because pinning may wait for all work on the device. It
// never shrinks: unpinning may wait too, even for kernels of a collective that waits for a lost rank, and this thread
// could then not notify the other ranks. So users limit what they use at a time (engine/device/host_staged_path.h); more is
// needed only for tensors that cannot be split. Not thread-safe; needs a Turn on the device.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "devices/device.h"

namespace hvd {

class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;

  class Block {
   public:
    Block(std::shared_ptr<PinnedPool> pool, std::byte* data, size_t bytes) : pool_(std::move(pool)), data_(data), bytes_(bytes) {}
    ~Block() { pool_->give_back(data_, bytes_); }
    Block(const Block&) = delete;
    std::byte* data() const { return data_; }

   private:
    std::shared_ptr<PinnedPool> pool_;
    std::byte* data_;
    size_t bytes_;  // bytes of its size class
  };

  // Take at least `bytes` bytes, contents undefined. Release the block only when no copy from or to it is in flight.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  size_t held() const { return held_; }  // bytes pinned, in use or not
  size_t used() const {
    std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  void give_back(std::byte* data, size_t bytes);

  std::shared_ptr<Device> device_;
  mutable std::mutex mutex_;  // blocks are returned from any thread
  std::map<size_t, std::vector<std::byte*>> free_;  // free blocks by size
  size_t held_ = 0, used_ = 0;
};

}  // namespace hvd
