#include "shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

namespace simnccl {
namespace {

constexpr uint64_t kArea = 1ull << 32, kChannelArea = 1ull << 30;

uint64_t control_bytes() { return (sizeof(Control) + 4095) / 4096 * 4096; }

}  // namespace

Shared::Shared(int fd, int size) : fd_(fd), size_(size) {
  const uint64_t all =
      control_bytes() + static_cast<uint64_t>(size) * kArea + static_cast<uint64_t>(size) * static_cast<uint64_t>(size) * kChannelArea;
  if (::ftruncate(fd, static_cast<off_t>(all)) != 0) std::abort();
  void* p = ::mmap(nullptr, control_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) std::abort();
  control_ = static_cast<Control*>(p);  // zeros are a valid start
}

Shared::~Shared() {
  ::munmap(control_, control_bytes());
  ::close(fd_);
}

uint64_t Shared::area_at(int rank) const { return control_bytes() + static_cast<uint64_t>(rank) * kArea; }

uint64_t Shared::channel_at(int from, int to) const { return area_at(size_) + static_cast<uint64_t>(from * size_ + to) * kChannelArea; }

void Shared::forget_area(int rank) const {
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(area_at(rank)), static_cast<off_t>(kArea));
}

Shared::Piece::Piece(int fd, uint64_t offset, size_t bytes) {
  if (bytes == 0) return;
  const uint64_t before = offset % 4096;
  length_ = bytes + before;
  base_ = ::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset - before));
  if (base_ == MAP_FAILED) std::abort();
  data_ = static_cast<std::byte*>(base_) + before;
}

Shared::Piece::~Piece() {
  if (base_) ::munmap(base_, length_);
}

}  // namespace simnccl
