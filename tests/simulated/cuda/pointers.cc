// What is known of a pointer.
#include <cstring>

#include "memory.h"

namespace simcuda {
namespace {

constexpr size_t kHead = 2 << 20;  // expandable segments lie somewhere in a reserved range, whose start is what one is told

Found find(CUdeviceptr address, Place& place) {
  const Found found = find_device_address(address, 1, place);
  if (found != Found::kUnknown) return found;
  return find_host_address(reinterpret_cast<void*>(address), 1, place);
}

template <typename T>
int put(void* value, T is) {
  std::memcpy(value, &is, sizeof is);
  return kSuccess;
}

int attribute(const Place& place, int which, void* value) {
  const Allocation& a = *place.allocation;
  const bool device = !a.on_host();
  switch (which) {
    case 1: return put<void*>(value, a.context);
    case 2: return put<unsigned>(value, device ? 2 : 1);
    case 3: return put<Address>(value, a.base + place.offset);
    case 4: return device ? static_cast<int>(kInvalidValue) : put<void*>(value, a.host + place.offset);
    case 6: return put<unsigned>(value, 0);
    case 7: return put<uint64_t>(value, a.id);
    case 8: return put<unsigned>(value, 0);  // managed
    case 9: return put<int>(value, a.context->device);
    case 10: return put<unsigned>(value, a.kind == Allocation::kDevice && a.exportable);
    case 11: return put<Address>(value, a.base - (a.exportable ? 0 : kHead));
    case 12: return put<size_t>(value, a.bytes + (a.exportable ? 0 : kHead));
    case 13: return put<unsigned>(value, 1);
    case 17: return put<void*>(value, nullptr);  // of no pool
    default: return kInvalidValue;
  }
}

// What cuPointerGetAttributes says of memory that CUDA does not know.
int nothing(int which, void* value) {
  switch (which) {
    case 1:
    case 3:
    case 4:
    case 7:
    case 11:
    case 12:
    case 17: return put<uint64_t>(value, 0);
    case 2:
    case 6:
    case 8:
    case 10:
    case 13: return put<unsigned>(value, 0);
    case 9: return put<int>(value, -2);
    default: return kInvalidValue;
  }
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuPointerGetAttribute(void* value, int which, CUdeviceptr address) {
  Call call("cuPointerGetAttribute", kNeedsContext);
  if (call.error) return call.error;
  Place place;
  const Found found = find(address, place);
  if (found == Found::kFreed) violation("cuPointerGetAttribute of memory that was freed");
  return value && found == Found::kYes ? attribute(place, which, value) : kInvalidValue;
}

int cuPointerGetAttributes(unsigned count, int* attributes, void** values, CUdeviceptr address) {
  Call call("cuPointerGetAttributes", kNeedsContext);
  if (call.error) return call.error;
  if (!count || !attributes || !values) return kInvalidValue;
  Place place;
  const Found found = find(address, place);
  if (found == Found::kFreed) violation("cuPointerGetAttributes of memory that was freed");
  for (unsigned i = 0; i < count; ++i) {
    if (found == Found::kYes && attribute(place, attributes[i], values[i]) == kSuccess) continue;
    if (int error = nothing(attributes[i], values[i])) return error;
  }
  return kSuccess;
}

}  // extern "C"
