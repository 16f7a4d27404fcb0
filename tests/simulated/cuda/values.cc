// Streams that write and await 32-bit words in memory.
#include "running.h"
#include "streams.h"

using namespace simcuda;

namespace {

struct Word {
  Stream* stream = nullptr;
  Place place;
  uint32_t* touch() const { return reinterpret_cast<uint32_t*>(simcuda::touch(place, sizeof(uint32_t), Access::kUnknown)); }
};

int find_word(Call& call, CUstream handle, Address address, Word& word) {
  if (call.error) return call.error;
  word.stream = find_stream(handle, call.context, call.error);
  if (!word.stream) return call.error;
  if (address % sizeof(uint32_t)) return kInvalidValue;
  const Found found = find_device_address(address, sizeof(uint32_t), word.place);
  if (found == Found::kFreed) violation(std::string(call.name) + " at memory that was freed");
  return found == Found::kYes ? kSuccess : kInvalidValue;
}

}  // namespace

extern "C" {

int cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  Call call("cuStreamWriteValue32_v2", kNeedsContext);
  Word word;
  if (int error = find_word(call, stream, address, word)) return error;
  if (flags & ~1U) return kInvalidValue;
  Item item{.name = call.name};
  item.run = [=] {
    uint32_t* at = word.touch();
    {
      std::unique_lock lock(driver().mutex);
      // a host reader then knows of this stream's work
      if (word.place.allocation->on_host()) host_clock().join(word.stream->clock);
    }
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
    return 0;
  };
  return submit(*word.stream, std::move(item));
}

int cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags) {
  Call call("cuStreamWaitValue32_v2", kNeedsContext);
  Word word;
  if (int error = find_word(call, stream, address, word)) return error;
  if (flags != kWaitGeq && flags != kWaitEq) return kInvalidValue;  // the other conditions are not simulated
  Item item{.name = call.name};
  item.poll = [=] {
    const uint32_t now = __atomic_load_n(word.touch(), __ATOMIC_SEQ_CST);
    return flags == kWaitEq ? now == value : static_cast<int32_t>(now - value) >= 0;
  };
  return submit(*word.stream, std::move(item));
}

}  // extern "C"
