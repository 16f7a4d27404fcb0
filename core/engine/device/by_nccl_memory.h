// Memory for what NCCL reads and writes that is not the program's: zeros of a rank that has joined, results whose size is known late. On
// the device; where that has none left, pinned memory of the host, which NCCL's kernels reach as well, slowly. A rank takes it without the
// others: what they do does not depend on where it is.
//
// Allocating may wait for all that the device has to do, so for NCCL's kernels too, and these for other ranks. They come: operations are
// launched in one order, so the first that some rank has not launched waits only for such as all have launched. (The kernels of somebody
// else's communicators know no such order.) Blocks are kept for the next one until the end: freeing waits for the device, so for kernels
// that wait for a rank that is lost, which this thread then would not come to abort.
//
// Used with a Turn on the device.
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
  // `log`: is warned once of a device that has no memory left.
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
    const size_t bytes_;  // of its class
    const bool pinned_;
  };

  // At least so many bytes, contents undefined. Whoever lets go of it knows that nothing uses it any more, or only the stream on which the
  // next one will use it.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  size_t pinned() const { return pinned_; }  // bytes that are the host's, in use or not

 private:
  using Free = std::map<size_t, std::vector<std::byte*>>;  // by size
  std::byte* take_free(size_t most, size_t* size, bool* is_pinned);
  void give_back(std::byte* data, size_t bytes, bool pinned);
  Status pin(size_t bytes, std::byte** data);

  const std::shared_ptr<Device> device_;
  const LogSink log_;
  bool warned_ = false;
  std::mutex mutex_;  // blocks come back from any thread
  Free free_, free_pinned_;
  size_t pinned_ = 0;
};

}  // namespace hvd
