// cuMemAlloc_v2 and related functions.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "memory.h"

namespace simcuda {
namespace {

constexpr std::byte kFresh{0xCB}, kDead{0xDD}, kRedzone{0xFA};
constexpr size_t kFill = 16 << 20;  // only the ends of larger ones are filled

void fill(std::byte* memory, size_t bytes, std::byte value) {
  if (bytes <= kFill) {
    std::memset(memory, static_cast<int>(value), bytes);
  } else {
    std::memset(memory, static_cast<int>(value), kFill / 2);
    std::memset(memory + bytes - kFill / 2, static_cast<int>(value), kFill / 2);
  }
}

size_t shift_of(const Allocation& a) { return a.base % 4096; }
size_t tail_of(const Allocation& a) { return whole_pages(a.bytes + shift_of(a)) - a.bytes - shift_of(a); }

int64_t used_on(int device) {
  int64_t used = 0;
  for (auto& allocation : live_allocations())
    if (allocation->kind == Allocation::kDevice && allocation->context->device == device) used += static_cast<int64_t>(allocation->bytes);
  return used;
}

// Small ones start at any multiple of 512 bytes, as with the real driver; large ones at 2 MiB.
Address choose_address(size_t bytes) {
  static uint64_t count = 0;
  const Address shift = bytes < (1 << 20) ? 512 * (++count % 8) : 0;
  const Address start = reserve(bytes + shift);
  return start ? start + shift : 0;
}

std::shared_ptr<Allocation> allocate(Context* context, size_t bytes) {
  auto created = std::make_shared<Allocation>();
  created->context = context;
  created->bytes = bytes;
  created->base = choose_address(bytes);
  const size_t shift = shift_of(*created);
  created->offset = file_space(bytes + shift);
  if (!created->base || !created->offset) return nullptr;
  void* memory = map_file(device_file(), created->offset, bytes + shift, *created);
  if (!memory) return nullptr;
  created->host = static_cast<std::byte*>(memory) + shift;
  fill(created->host, bytes, kFresh);
  std::memset(created->host + bytes, static_cast<int>(kRedzone), tail_of(*created));
  set_poisoned(created->host + bytes, tail_of(*created), true);
  add(created);
  return created;
}

void release(const std::shared_ptr<Allocation>& a) {
  set_poisoned(a->host + a->bytes, tail_of(*a), false);
  for (size_t i = 0; i < tail_of(*a); ++i)
    if (a->host[a->bytes + i] != kRedzone) {
      violation("something wrote " + std::to_string(i) + " bytes behind the end of " + describe(*a));
      break;
    }
  remove(a, "cuMemFree_v2");
  fill(a->host, a->bytes, kDead);
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  SIMCUDA_CALL(cuMemAlloc_v2, kNeedsContext | kUnsafe | kMayWait);
  if (!address || bytes == 0) return kInvalidValue;
  if (strikes(knobs().fail_alloc)) return kOutOfMemory;
  if (bytes > static_cast<size_t>(std::max<int64_t>(0, knobs().memory - used_on(call.context->device)))) return kOutOfMemory;
  auto created = allocate(call.context, bytes);
  if (!created) return kOutOfMemory;
  *address = created->base;
  return kSuccess;
}

int cuMemFree_v2(CUdeviceptr address) {
  SIMCUDA_CALL(cuMemFree_v2, kNeedsContext | kUnsafe | kMayWait);
  if (!address) return kSuccess;
  Place place;
  const Found found = find_device_address(address, 1, place);
  if (found == Found::kFreed) violation("cuMemFree_v2 of memory that was freed already");
  if (found != Found::kYes || place.offset || place.allocation->kind != Allocation::kDevice) return kInvalidValue;
  if (place.allocation->header) end_export(*place.allocation);
  release(place.allocation);
  return kSuccess;
}

int cuMemGetInfo_v2(size_t* available, size_t* total) {
  SIMCUDA_CALL(cuMemGetInfo_v2, kNeedsContext);
  if (!available || !total) return kInvalidValue;
  *total = static_cast<size_t>(knobs().memory);
  *available = static_cast<size_t>(std::max<int64_t>(0, knobs().memory - used_on(call.context->device)));
  return kSuccess;
}

}  // extern "C"
