// Address space: public addresses that may not be accessed, and the file with the bytes of device memory.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

#include "memory.h"

namespace simcuda {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kUnit = 2 << 20;  // allocations start at multiples of it, with at least as much between them
constexpr size_t kChunk = 4ULL << 30;  // address space reserved at once

}  // namespace

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

Address reserve(size_t bytes) {
  static Address next = 0, end = 0;
  const size_t needed = (bytes + kUnit - 1) / kUnit * kUnit + kUnit;
  if (next + needed > end) {
    const size_t chunk = needed + kUnit > kChunk ? needed + kUnit : kChunk;
    void* reserved = mmap(nullptr, chunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return 0;
    next = (reinterpret_cast<Address>(reserved) + kUnit - 1) / kUnit * kUnit;
    end = reinterpret_cast<Address>(reserved) + chunk;
  }
  const Address base = next;
  next += needed;
  return base;
}

int device_file() {
  static const int file = [] {
    const int fd = memfd_create("simcuda", MFD_CLOEXEC);
    struct flock alive{};  // a lock on the first byte means that this process lives
    alive.l_type = F_WRLCK;
    alive.l_len = 1;
    fcntl(fd, F_OFD_SETLK, &alive);
    return fd;
  }();
  return file;
}

uint64_t file_space(size_t bytes) {
  static uint64_t end = kPage;
  const uint64_t start = end;
  end += whole_pages(bytes) + kPage;
  return ftruncate(device_file(), static_cast<off_t>(end)) == 0 ? start : 0;
}

void* map_file(int file, uint64_t offset, size_t bytes, Allocation& owner) {
  const size_t inner = whole_pages(bytes), outer = inner + 2 * kPage;
  void* outside = mmap(nullptr, outer, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (outside == MAP_FAILED) return nullptr;
  void* inside = static_cast<std::byte*>(outside) + kPage;
  if (mmap(inside, inner, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset)) == MAP_FAILED) {
    munmap(outside, outer);
    return nullptr;
  }
  owner.mapping = outside;
  owner.mapped = outer;
  return inside;
}

void set_poisoned([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes, [[maybe_unused]] bool poisoned) {
#if defined(__SANITIZE_ADDRESS__)
  if (poisoned)
    ASAN_POISON_MEMORY_REGION(memory, bytes);
  else
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
#endif
}

Allocation::~Allocation() {
  if (mapping) {
    set_poisoned(mapping, mapped, false);  // later users of these addresses may access them
    munmap(mapping, mapped);
  }
  if (header) munmap(header, kPage);
  if (file >= 0) close(file);
  if (kind == kDevice && offset)
    fallocate(device_file(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
              static_cast<off_t>(whole_pages(bytes)));
}

}  // namespace simcuda
