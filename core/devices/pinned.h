// Pool of a device's pinned memory. Pinning can wait for all work on the device, so blocks are kept for reuse. The pool never shrinks:
// unpinning can wait for kernels of a collective that waits for a lost rank, and would block the thread that must notify the other ranks.
// Users therefore limit the memory in use (engine/device/host_staged_path.h), except for tensors that cannot be split. Not thread-safe.
// Callers must have entered the device (Device::Turn).
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
    // Size of the memory block in bytes, rounded up to its size class.
    size_t bytes_;
  };

  // Take a block of at least `bytes` bytes with undefined contents from the pool. Release the block only when no copy
  // from or to it is in flight.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  // Return the number of bytes of pinned memory, both used and free.
  size_t held() const { return held_; }
  size_t used() const {
    std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  void give_back(std::byte* data, size_t bytes);

  std::shared_ptr<Device> device_;
  // Protects free_, because any thread can return blocks.
  mutable std::mutex mutex_;
  // Unused memory blocks, keyed by their size in bytes.
  std::map<size_t, std::vector<std::byte*>> free_;
  size_t held_ = 0, used_ = 0;
};

}  // namespace hvd
