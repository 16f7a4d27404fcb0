#include "devices/pinned.h"

#include <algorithm>
#include <bit>

namespace hvd {

constexpr size_t kLeast = size_t{64} << 10;

PinnedPool::~PinnedPool() {
  const Device::Turn turn(*device_);
  // Do not free the memory, because the device has failed or the process is ending.
  if (!turn.status().ok()) return;
  for (const auto& [bytes, blocks] : free_) {
    for (std::byte* block : blocks) device_->unpin(block);
  }
}

Status PinnedPool::take(size_t bytes, std::shared_ptr<Block>* out) {
  const size_t size = std::bit_ceil(std::max(bytes, kLeast));
  std::byte* memory = nullptr;
  {
    std::lock_guard lock(mutex_);
    auto& free = free_[size];
    if (!free.empty()) {
      memory = free.back();
      free.pop_back();
      used_ += size;
    }
  }
  if (!memory) {
    HVD_RETURN_IF_ERROR(device_->pin(size, &memory));
    std::lock_guard lock(mutex_);
    held_ += size;
    used_ += size;
  }
  *out = std::make_shared<Block>(shared_from_this(), memory, size);
  return {};
}

void PinnedPool::give_back(std::byte* data, size_t bytes) {
  std::lock_guard lock(mutex_);
  free_[bytes].push_back(data);
  used_ -= bytes;
}

}  // namespace hvd
