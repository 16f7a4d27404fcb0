// Host memory that the device may use: allocated here, or registered.
#include <sys/mman.h>

#include "memory.h"

namespace simcuda {
namespace {

constexpr size_t kPage = 4096;

bool overlaps_registered(const void* memory, size_t bytes) {
  const auto first = reinterpret_cast<Address>(memory);
  for (auto& a : live_allocations()) {
    const auto start = reinterpret_cast<Address>(a->host);
    if (a->on_host() && first < start + a->bytes && start < first + bytes) return true;
  }
  return false;
}

// Makes every page resident, as pinning does.
void populate(const std::byte* memory, size_t bytes) {
  const auto first = reinterpret_cast<Address>(memory) / kPage * kPage;
  if (madvise(reinterpret_cast<void*>(first), reinterpret_cast<Address>(memory) + bytes - first, 23 /* MADV_POPULATE_WRITE */) == 0) return;
  for (size_t at = 0; at < bytes; at += kPage) (void)*reinterpret_cast<const volatile char*>(memory + at);
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuMemAllocHost_v2(void** memory, size_t bytes) {
  SIMCUDA_CALL(cuMemAllocHost_v2, kNeedsContext | kUnsafe | kMayWait);
  if (!memory || bytes == 0) return kInvalidValue;
  if (strikes(knobs().fail_alloc) || strikes(knobs().fail_pin)) return kOutOfMemory;
  auto created = std::make_shared<Allocation>();
  created->kind = Allocation::kPinned;
  created->context = call.context;
  created->bytes = bytes;
  created->mapped = whole_pages(bytes) + 2 * kPage;
  void* outside = mmap(nullptr, created->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (outside == MAP_FAILED) return kOutOfMemory;
  created->mapping = outside;
  created->host = static_cast<std::byte*>(outside) + kPage;
  if (mprotect(created->host, whole_pages(bytes), PROT_READ | PROT_WRITE)) return kOutOfMemory;
  created->base = reinterpret_cast<Address>(created->host);
  add(created);
  *memory = created->host;
  return kSuccess;
}

int cuMemFreeHost(void* memory) {
  SIMCUDA_CALL(cuMemFreeHost, kNeedsContext | kUnsafe | kMayWait);
  Place place;
  if (find_host_address(memory, 1, place) != Found::kYes || place.offset || place.allocation->kind != Allocation::kPinned)
    return kInvalidValue;
  remove(place.allocation, "cuMemFreeHost");
  return kSuccess;
}

int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned) {
  SIMCUDA_CALL(cuMemHostRegister_v2, kNeedsContext | kUnsafe | kMayWait);
  if (!memory || bytes == 0) return kInvalidValue;
  if (overlaps_registered(memory, bytes)) return kHostMemoryAlreadyRegistered;
  auto created = std::make_shared<Allocation>();
  created->kind = Allocation::kRegistered;
  created->context = call.context;
  created->bytes = bytes;
  created->host = static_cast<std::byte*>(memory);
  created->base = reinterpret_cast<Address>(memory);
  populate(created->host, bytes);
  add(created);
  return kSuccess;
}

int cuMemHostUnregister(void* memory) {
  SIMCUDA_CALL(cuMemHostUnregister, kNeedsContext | kUnsafe | kMayWait);
  Place place;
  if (find_host_address(memory, 1, place) != Found::kYes || place.offset || place.allocation->kind != Allocation::kRegistered)
    return kHostMemoryNotRegistered;
  remove(place.allocation, "cuMemHostUnregister");
  return kSuccess;
}

int cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* memory, unsigned flags) {
  SIMCUDA_CALL(cuMemHostGetDevicePointer_v2, kNeedsContext);
  Place place;
  if (!address || flags || find_host_address(memory, 1, place) != Found::kYes) return kInvalidValue;
  *address = place.allocation->base + place.offset;
  return kSuccess;
}

}  // extern "C"
