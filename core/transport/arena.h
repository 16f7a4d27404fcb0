// Arena: this rank's region of the node's shared memory, divided into blocks for tensors that the neighbours read and write without a copy.
// Allocation is first-fit over a map of free ranges, which suffices because blocks are few and large (gradient buckets).
//
// A block keeps the mapping of the segment alive, so it can outlive its engine. Freed memory is returned to the system by punching a hole
// in the file, so it is zero when allocated again.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "transport/segment.h"

namespace hvd {

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(std::shared_ptr<Segment> segment, int local_rank);

  class Block {
   public:
    Block(std::shared_ptr<Arena> arena, size_t offset, size_t bytes) : arena_(std::move(arena)), offset_(offset), bytes_(bytes) {}
    ~Block() { arena_->release(offset_, bytes_); }
    Block(const Block&) = delete;
    std::byte* data() const { return arena_->base_ + offset_; }
    size_t bytes() const { return bytes_; }

   private:
    std::shared_ptr<Arena> arena_;
    size_t offset_, bytes_;
  };

  // Allocate zeroed, page-aligned memory, or return null if no free range is long enough. `bytes` must be positive.
  std::shared_ptr<Block> allocate(size_t bytes);
  // Return the total size in bytes of all blocks, rounded up to pages.
  size_t used() const;

 private:
  void release(size_t offset, size_t bytes);

  std::shared_ptr<Segment> segment_;
  std::byte* base_;
  pid_t owner_;
  mutable std::mutex mutex_;
  // Size in bytes of each free range, keyed by offset. Adjacent ranges are merged.
  std::map<size_t, size_t> free_;
  size_t used_ = 0;
};

}  // namespace hvd
