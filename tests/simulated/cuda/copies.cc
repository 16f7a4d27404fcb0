// Copies and memsets; for pageable host memory the host waits.
#include <cstring>

#include "capture.h"
#include "running.h"
#include "streams.h"

namespace simcuda {
namespace {

constexpr size_t kStaged = 64 << 10;  // pageable memory up to this size is staged by the call

enum class Where { kDevice, kHost, kAnywhere };

// Returns 0, or the error for memory that is invalid at this end of the copy.
int find(Address address, size_t bytes, Where where, const char* name, Place& place) {
  void* memory = reinterpret_cast<void*>(address);
  Found found = find_device_address(address, bytes, place);
  if (found == Found::kUnknown) found = find_host_address(memory, bytes, place);
  if (found == Found::kFreed) {
    violation(std::string(name) + " of memory that was freed");
    return kInvalidValue;
  }
  // partly pinned counts as pageable
  if (found == Found::kOutside && place.allocation->on_host()) found = Found::kUnknown;
  if (found == Found::kOutside) return kInvalidValue;
  if (found == Found::kUnknown) {
    if (where == Where::kDevice || !address) return kInvalidValue;
    place = {nullptr, 0, static_cast<std::byte*>(memory)};
    return kSuccess;
  }
  if (where == Where::kHost && !place.allocation->on_host()) return kInvalidValue;
  return kSuccess;
}

// Pageable memory below the staging size: the copy takes its current contents, and the caller continues.
bool stage(Place& from, size_t bytes, std::shared_ptr<std::vector<std::byte>>& staged) {
  if (!from.pageable || bytes > kStaged) return false;
  staged = std::make_shared<std::vector<std::byte>>(from.pageable, from.pageable + bytes);
  from.pageable = staged->data();
  return true;
}

int copy(Call& call, Address to_address, Where to_where, Address from_address, Where from_where, size_t bytes, CUstream handle) {
  Place to, from;
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (bytes == 0) return kSuccess;
  if (int error = find(to_address, bytes, to_where, call.name, to)) return error;
  if (int error = find(from_address, bytes, from_where, call.name, from)) return error;
  const bool waits = to.pageable || (from.pageable && bytes > kStaged), pageable = to.pageable || from.pageable;
  if (pageable)
    if (int error = capture_forbids(*stream)) return error;
  if (waits && knobs().watch) violation(std::string(call.name) + " with pageable memory makes the host wait");
  std::shared_ptr<std::vector<std::byte>> staged;
  stage(from, bytes, staged);
  Item item{.name = call.name};
  item.run = [to, from, bytes, staged] {
    const std::byte* source = touch(from, bytes, Access::kRead);
    std::memmove(touch(to, bytes, Access::kWrite), source, bytes);
    return 0;
  };
  if (int error = submit(*stream, std::move(item))) return error;
  if (!waits) return kSuccess;
  const uint64_t own = stream->submitted;
  if (int error = call.wait([&] { return stream->completed >= own; })) return error;
  host_clock().join(stream->clock);
  return kSuccess;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyHtoDAsync_v2, kNeedsContext);
  return copy(call, to, Where::kDevice, reinterpret_cast<Address>(from), Where::kHost, bytes, stream);
}

int cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoHAsync_v2, kNeedsContext);
  return copy(call, reinterpret_cast<Address>(to), Where::kHost, from, Where::kDevice, bytes, stream);
}

int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyDtoDAsync_v2, kNeedsContext);
  return copy(call, to, Where::kDevice, from, Where::kDevice, bytes, stream);
}

int cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  SIMCUDA_CALL(cuMemcpyAsync, kNeedsContext);
  return copy(call, to, Where::kAnywhere, from, Where::kAnywhere, bytes, stream);
}

int cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle) {
  SIMCUDA_CALL(cuMemsetD8Async, kNeedsContext);
  Stream* stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (bytes == 0) return kSuccess;
  Place place;
  if (int error = find(to, bytes, Where::kDevice, call.name, place)) return error;
  Item item{.name = call.name};
  item.run = [=] {
    std::memset(touch(place, bytes, Access::kWrite), value, bytes);
    return 0;
  };
  return submit(*stream, std::move(item));
}

}  // extern "C"
