#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>

#include "engine/device/nccl_sets.h"

namespace hvd {

namespace {

constexpr size_t kLeast = size_t{64} << 10, kGrain = 512;

// Return the size of the block to allocate: one of two size classes per power of two. If requested sizes grow slowly, all blocks together
// then take less than four times the size of the last one.
size_t class_of(size_t bytes) {
  const size_t step = std::bit_floor(std::max(bytes, kLeast)) / 2;
  return (std::max(bytes, kLeast) + step - 1) / step * step;
}

}  // namespace

GpuMemory::~GpuMemory() {
  const Device::Turn turn(*device_);
  // Do not free memory if the device has failed or the process is ending.
  if (!turn.status().ok()) return;
  for (const auto& [size, blocks] : free_) {
    for (std::byte* block : blocks) device_->free(block);
  }
  for (const auto& [size, blocks] : free_pinned_) {
    for (std::byte* block : blocks) device_->unpin(block);
  }
}

// Take the smallest free block whose size is between `*size` and `most` bytes.
std::byte* GpuMemory::take_free(size_t most, size_t* size, bool* is_pinned) {
  std::lock_guard lock(mutex_);
  for (Free* some : {&free_, &free_pinned_}) {
    const auto it = some->lower_bound(*size);
    if (it == some->end() || it->first > most) continue;
    std::byte* data = it->second.back();
    it->second.pop_back();
    *size = it->first;
    if (it->second.empty()) some->erase(it);
    *is_pinned = some == &free_pinned_;
    return data;
  }
  return nullptr;
}

Status GpuMemory::take(size_t bytes, std::shared_ptr<Block>* out) {
  size_t size = class_of(bytes);
  bool is_pinned = false;
  std::byte* data = take_free(2 * size, &size, &is_pinned);
  void* memory = nullptr;
  if (!data && device_->allocate(size, &memory).ok()) data = static_cast<std::byte*>(memory);
  const size_t least = (std::max(bytes, kLeast) + kGrain - 1) / kGrain * kGrain;
  if (!data && least < size && device_->allocate(least, &memory).ok()) {
    data = static_cast<std::byte*>(memory);
    size = least;
  }
  if (!data) data = take_free(std::numeric_limits<size_t>::max(), &size, &is_pinned);
  if (!data) {
    size = least;
    HVD_RETURN_IF_ERROR(pin(size, &data));
    is_pinned = true;
  }
  *out = std::make_shared<Block>(shared_from_this(), data, size, is_pinned);
  return {};
}

Status GpuMemory::pin(size_t bytes, std::byte** data) {
  HVD_RETURN_IF_ERROR(device_->pin(bytes, data).with("neither the GPU nor the host has memory for NCCL's buffers"));
  pinned_ += bytes;
  if (warned_ || !log_) return {};
  warned_ = true;
  log_(LogLevel::warning,
       device_->description() +
           " has no memory left for NCCL's buffers; they are in pinned host memory instead, which is slow. Leave some GPU "
           "memory free");
  return {};
}

void GpuMemory::give_back(std::byte* data, size_t bytes, bool pinned) {
  std::lock_guard lock(mutex_);
  (pinned ? free_pinned_ : free_)[bytes].push_back(data);
}

void LaunchedOperations::add(std::shared_ptr<const Completion> completion, std::string what) {
  constexpr size_t kMany = 64;
  // Release finished operations early, because each one holds a device event. Errors are reported by look().
  if (all_.size() >= kMany) static_cast<void>(sweep());
  if (all_.empty()) next_look_ = Clock::now() + std::chrono::milliseconds(1);
  all_.push_back({std::move(completion), std::move(what)});
}

Status LaunchedOperations::sweep() {
  while (!all_.empty()) {
    bool there = false;
    HVD_RETURN_IF_ERROR(all_.front().completion->reached(&there));
    if (!there) break;
    all_.pop_front();
  }
  return {};
}

Status LaunchedOperations::look(const NcclSets& sets) {
  const auto now = Clock::now();
  if (all_.empty() || now < next_look_) return {};
  next_look_ = now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(kLook));
  Status status = sweep();
  if (status.ok() && !all_.empty()) status = sets.async_error();
  return status.ok() ? status : status.with(all_.front().what);
}

void LaunchedOperations::fail(const Status& why) {
  for (const One& one : all_) {
    bool there = false;
    if (!one.completion->reached(&there).ok() || !there) one.completion->fail(why.with(one.what));
  }
}

}  // namespace hvd
