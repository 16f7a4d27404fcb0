#include "engine/device/by_nccl_memory.h"

#include <algorithm>
#include <bit>

namespace hvd {
namespace {

constexpr size_t kLeast = size_t{64} << 10;

// Eight sizes from one power of two to the next, so that little is lost.
size_t class_of(size_t bytes) {
  const size_t step = std::bit_floor(std::max(bytes, kLeast)) / 8;
  return (std::max(bytes, kLeast) + step - 1) / step * step;
}

}  // namespace

GpuMemory::~GpuMemory() {
  const Device::Turn turn(*device_);
  if (!turn.status().ok()) return;  // the device has failed or the process ends: the memory goes with it
  free_all(&free_);
  for (const auto& [size, blocks] : free_pinned_) {
    for (std::byte* block : blocks) device_->unpin(block);
  }
}

void GpuMemory::free_all(Free* blocks) const {
  for (const auto& [size, of_size] : *blocks) {
    for (std::byte* block : of_size) device_->free(block);
  }
  blocks->clear();
}

// The smallest of at least so many bytes, of which not half is lost.
std::byte* GpuMemory::take_free(size_t* size, bool* is_pinned) {
  std::lock_guard lock(mutex_);
  for (Free* some : {&free_, &free_pinned_}) {
    const auto it = some->lower_bound(*size);
    if (it == some->end() || it->first > 2 * *size) continue;
    std::byte* data = it->second.back();
    it->second.pop_back();
    *size = it->first;
    if (it->second.empty()) some->erase(it);
    *is_pinned = some == &free_pinned_;
    return data;
  }
  return nullptr;
}

// Those in whose place the one of so many bytes that is about to be allocated can serve: sizes that grow leave nothing behind.
void GpuMemory::free_outgrown(size_t size) {
  Free outgrown;
  {
    std::lock_guard lock(mutex_);
    const auto first = free_.lower_bound((size + 1) / 2), last = free_.lower_bound(size);
    outgrown.insert(first, last);
    free_.erase(first, last);
  }
  free_all(&outgrown);
}

Status GpuMemory::take(size_t bytes, std::shared_ptr<Block>* out) {
  size_t size = class_of(bytes);
  bool is_pinned = false;
  std::byte* data = take_free(&size, &is_pinned);
  if (!data) free_outgrown(size);
  if (!data && !allocate(size, &data).ok()) {
    HVD_RETURN_IF_ERROR(device_->pin(size, &data));
    is_pinned = true;
    pinned_ += size;
  }
  *out = std::make_shared<Block>(shared_from_this(), data, size, is_pinned);
  return {};
}

Status GpuMemory::allocate(size_t size, std::byte** out) {
  void* memory = nullptr;
  Status status = device_->allocate(size, &memory);
  if (!status.ok()) {
    // What lies here unused may be what is missing. Nothing uses it: freeing waits for the device where it must.
    Free unused;
    {
      std::lock_guard lock(mutex_);
      unused.swap(free_);
    }
    if (unused.empty()) return status;
    free_all(&unused);
    status = device_->allocate(size, &memory);
  }
  *out = static_cast<std::byte*>(memory);
  return status;
}

void GpuMemory::give_back(std::byte* data, size_t bytes, bool pinned) {
  std::lock_guard lock(mutex_);
  (pinned ? free_pinned_ : free_)[bytes].push_back(data);
}

}  // namespace hvd
