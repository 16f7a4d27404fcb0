// Pool of a device's pinned memory. It keeps memory between operations, because pinning may wait for all work on the
// device. It never shrinks: unpinning may wait even for kernels of a collective that waits for a lost rank, and then
// this thread could not notify the other ranks. So users limit how much they use at a time
// (engine/device/host_staged_path.h), except for tensors that cannot be split. Not thread-safe; needs a Turn on the
// device.
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
    size_t bytes_;  // bytes of the block's size class
  };

  // Take a block of at least `bytes` bytes, with undefined contents. Release it only when no copy from or to it is in
  // flight.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  size_t held() const { return held_; }  // bytes of pinned memory, whether in use or free
  size_t used() const {
    std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  void give_back(std::byte* data, size_t bytes);

  std::shared_ptr<Device> device_;
  mutable std::mutex mutex_;  // Needed because blocks are returned from any thread.
  std::map<size_t, std::vector<std::byte*>> free_;  // Free blocks, keyed by size.
  size_t held_ = 0, used_ = 0;
};

}  // namespace hvd
