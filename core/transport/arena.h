// Arena: this rank's own region of the node's memory, cut into blocks for tensors that its neighbours shall read and write without a
// copy. First fit over a map of the free stretches: blocks are few and large (gradient buckets), so simple beats fast.
//
// A block outlives the engine that made it: it holds the segment's mapping. Memory that is given back leaves the process (a hole is
// punched into the file) and is zero when it is handed out again.
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

  // Zeroed memory that begins on a page of its own; null when no stretch is long enough. bytes > 0.
  std::shared_ptr<Block> allocate(size_t bytes);
  size_t used() const;  // bytes in blocks, in whole pages

 private:
  void release(size_t offset, size_t bytes);

  std::shared_ptr<Segment> segment_;
  std::byte* base_;
  pid_t owner_;
  mutable std::mutex mutex_;
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are joined
  size_t used_ = 0;
};

}  // namespace hvd
