#include "transport/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

namespace hvd {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t pages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

}  // namespace

Arena::Arena(std::shared_ptr<Segment> segment, int local_rank)
    : segment_(std::move(segment)), base_(segment_->arena(local_rank)), owner_(::getpid()) {
  if (base_) free_[0] = segment_->spec().arena_bytes;
}

std::shared_ptr<Arena::Block> Arena::allocate(size_t bytes) {
  const size_t length = pages(bytes);
  if (bytes == 0 || length < bytes) return nullptr;
  size_t offset;
  {
    std::lock_guard lock(mutex_);
    auto it = free_.begin();
    while (it != free_.end() && it->second < length) ++it;
    if (it == free_.end()) return nullptr;
    offset = it->first;
    const size_t rest = it->second - length;
    free_.erase(it);
    if (rest) free_[offset + length] = rest;
    used_ += length;
  }
  return std::make_shared<Block>(shared_from_this(), offset, bytes);
}

void Arena::release(size_t offset, size_t bytes) {
  // In a forked child, free nothing: the memory belongs to the parent.
  if (::getpid() != owner_) return;
  size_t length = pages(bytes);
  // Return the memory to the system, which zeroes it before its next use. Memory without a file (ranks that are threads in tests) is
  // cleared here.
  if (::madvise(base_ + offset, length, MADV_REMOVE) != 0) std::memset(base_ + offset, 0, length);
  std::lock_guard lock(mutex_);
  used_ -= length;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

size_t Arena::used() const {
  std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace hvd
