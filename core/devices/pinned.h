// Pinned memory of a device, kept between operations: pinning may wait for all that the device has to do, so it happens at growth only.
// It never shrinks: unpinning may wait as well, for the program's kernels and for those of a collective that waits for a rank which is
// lost, and whoever waited there could not tell the others. So users bound what they have in use at a time (engine/device/staged.h); what
// grows beyond that is for tensors that cannot be cut. Used by one thread at a time, with a Turn on the device.
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
    size_t bytes_;  // of its class
  };

  // At least so many bytes, contents undefined. Whoever lets go of it knows that no copy from or to it is under way.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  size_t held() const { return held_; }  // bytes, in use or not
  size_t used() const {
    std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  void give_back(std::byte* data, size_t bytes);

  std::shared_ptr<Device> device_;
  mutable std::mutex mutex_;  // blocks come back from any thread
  std::map<size_t, std::vector<std::byte*>> free_;  // by size
  size_t held_ = 0, used_ = 0;
};

}  // namespace hvd
