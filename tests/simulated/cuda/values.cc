// Streams that write and await words in memory.
#include <type_traits>

#include "running.h"
#include "streams.h"

namespace simcuda {
namespace {

template <typename Word>
bool met(Word now, Word value, unsigned flags) {
  switch (flags & 3) {
    case kWaitGeq: return static_cast<std::make_signed_t<Word>>(now - value) >= 0;
    case kWaitEq: return now == value;
    case kWaitAnd: return (now & value) != 0;
    default: return static_cast<Word>(~(now | value)) != 0;
  }
}

template <typename Word>
int find_word(Call& call, CUstream handle, Address address, Stream*& stream, Place& place) {
  stream = find_stream(handle, call.context, call.error);
  if (!stream) return call.error;
  if (address % sizeof(Word)) return kInvalidValue;
  const Found found = find_device_address(address, sizeof(Word), place);
  if (found == Found::kFreed) violation(std::string(call.name) + " at memory that was freed");
  return found == Found::kYes ? kSuccess : kInvalidValue;
}

template <typename Word>
int write_value(Call& call, CUstream handle, Address address, Word value) {
  Stream* stream = nullptr;
  Place place;
  if (int error = find_word<Word>(call, handle, address, stream, place)) return error;
  Item item{.name = call.name};
  item.run = [=] {
    auto* word = reinterpret_cast<Word*>(touch(place, sizeof(Word), Access::kUnknown));
    {
      std::unique_lock lock(driver().mutex);
      if (place.allocation->on_host()) host_clock().join(stream->clock);  // who reads it there knows
    }
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
    return 0;
  };
  return submit(*stream, std::move(item));
}

template <typename Word>
int wait_value(Call& call, CUstream handle, Address address, Word value, unsigned flags) {
  Stream* stream = nullptr;
  Place place;
  if (int error = find_word<Word>(call, handle, address, stream, place)) return error;
  if (flags & ~(3U | 1U << 30)) return kInvalidValue;
  Item item{.name = call.name};
  item.poll = [=] {
    return met<Word>(__atomic_load_n(reinterpret_cast<Word*>(touch(place, sizeof(Word), Access::kUnknown)), __ATOMIC_SEQ_CST), value,
                     flags);
  };
  return submit(*stream, std::move(item));
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  Call call("cuStreamWriteValue32_v2", kNeedsContext);
  if (call.error) return call.error;
  return flags & ~1U ? static_cast<int>(kInvalidValue) : write_value(call, stream, address, value);
}

int cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
  Call call("cuStreamWriteValue64_v2", kNeedsContext);
  if (call.error) return call.error;
  return flags & ~1U ? static_cast<int>(kInvalidValue) : write_value(call, stream, address, value);
}

int cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  Call call("cuStreamWaitValue32_v2", kNeedsContext);
  if (call.error) return call.error;
  return wait_value(call, stream, address, value, flags);
}

int cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags) {
  Call call("cuStreamWaitValue64_v2", kNeedsContext);
  if (call.error) return call.error;
  return wait_value(call, stream, address, value, flags);
}

}  // extern "C"
