// Arena: this rank's region of the node's shared memory, divided into blocks for tensors that its neighbours read and
// write without a copy. First-fit allocation over a map of free ranges; blocks are few and large (gradient buckets), so
// simple suffices.
//
// A block may outlive its engine, because it holds the segment's mapping. Freed memory is returned to the system (a
// hole is punched into the file) and is zero when allocated again.
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

  // Allocate zeroed, page-aligned memory; null if no free range is long enough. bytes > 0.
  std::shared_ptr<Block> allocate(size_t bytes);
  size_t used() const;  // bytes in blocks, rounded up to pages

 private:
  void release(size_t offset, size_t bytes);

  std::shared_ptr<Segment> segment_;
  std::byte* base_;
  pid_t owner_;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> bytes; adjacent ranges are merged
  size_t used_ = 0;
};

}  // namespace hvd
