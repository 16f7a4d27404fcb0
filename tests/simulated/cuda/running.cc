#include "running.h"

#include <sys/mman.h>

#include <cstring>

#include "races.h"
#include "streams.h"

namespace simcuda {
namespace {

thread_local Running* running = nullptr;

// True if all pages of registered memory are still the original ones. After hole punching, the device would
// keep the old page.
bool pages_are_there(const std::byte* memory, size_t bytes) {
  const Address first = reinterpret_cast<Address>(memory) / 4096 * 4096;
  const size_t count = (reinterpret_cast<Address>(memory) + bytes - first + 4095) / 4096;
  std::vector<unsigned char> resident(count);
  if (mincore(reinterpret_cast<void*>(first), count * 4096, resident.data())) return false;
  for (unsigned char page : resident)
    if (!(page & 1)) return false;
  return true;
}

// The error of an access; empty if it is valid. Needs the lock.
std::string objection(const Allocation& allocation, size_t offset, size_t bytes) {
  const std::string what = std::string(running ? running->name : "the host") + " uses " + describe(allocation);
  if (allocation.freed) return what + " after it was " + (allocation.kind == Allocation::kImported ? "closed" : "freed");
  if (allocation.kind == Allocation::kImported && allocation.header->freed) return what + " after its exporter freed it";
  if (allocation.kind == Allocation::kRegistered && !pages_are_there(allocation.host + offset, bytes))
    return what + " whose pages were taken away (a hole punched, or unmapped) while it was registered";
  if (running && running->work == Work::kKernel && !allocation.on_host() && allocation.context != running->stream->context)
    return what + " on device " + std::to_string(running->stream->context->device) + " without access to that peer";
  return {};
}

// Memory for work that continues after a collected violation; never freed, because its end is unknown.
std::byte* scratch(size_t bytes) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<std::byte[]>>;
  std::unique_lock lock(mutex);
  return kept->emplace_back(new std::byte[bytes]()).get();
}

constexpr size_t kDigested = 1 << 17;  // words; larger memory is sampled at this many

// Other threads may write concurrently, and need not be ordered with this read.
__attribute__((no_sanitize("thread"))) uint64_t digest(const std::byte* memory, size_t bytes) {
  const size_t words = bytes / 8, step = words / kDigested + 1;
  uint64_t sum = bytes, word = 0;
  for (size_t i = 0; i < words; i += step) {
    std::memcpy(&word, memory + 8 * i, 8);
    sum = (sum ^ word) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 29;
  }
  for (size_t i = 8 * words; i < bytes; ++i) sum = (sum ^ static_cast<uint64_t>(memory[i])) * 0x9e3779b97f4a7c15;
  return sum;
}

}  // namespace

std::byte* touch(const Place& place, size_t bytes, Access access) {
  if (place.pageable || bytes == 0) return place.pageable;
  std::unique_lock lock(driver().mutex);
  Allocation& allocation = *place.allocation;
  if (std::string wrong = objection(allocation, place.offset, bytes); !wrong.empty()) {
    violation(wrong);
    return scratch(bytes);
  }
  if (running) running->use(place, bytes, access);
  return allocation.host + place.offset;
}

Running::Running(Stream* stream, const char* name, Work work) : stream(stream), name(name), work(work) { running = this; }

void Running::use(const Place& place, size_t bytes, Access access) {
  ++place.allocation->users;
  Use& use = uses_.emplace_back(Use{place, bytes, access, 0});
  if (!tells_writes(use)) use.before = digest(place.allocation->host + place.offset, bytes);
}

// For kernels and other libraries only the place is known: they count as writers if the bytes have changed.
// Where other processes or the host may write, this is no evidence.
bool Running::tells_writes(const Use& use) const {
  const Allocation& a = *use.place.allocation;
  return use.access != Access::kUnknown || a.kind != Allocation::kDevice || a.header;
}

// Other ranks' libraries in this process may have one rank access the memory of all.
bool Running::counts_for_races(const Use& use) const { return work != Work::kExternal || use.place.allocation->context == stream->context; }

Running::~Running() {
  running = nullptr;
  std::unique_lock lock(driver().mutex);
  for (Use& use : uses_) {
    Allocation& a = *use.place.allocation;
    --a.users;
    if (a.kind == Allocation::kImported && a.header->freed)
      violation(std::string(name) + " ran with " + describe(a) + ", which its exporter freed meanwhile");
    if (a.freed || !counts_for_races(use)) continue;
    if (!tells_writes(use) && digest(a.host + use.place.offset, use.bytes) != use.before) use.access = Access::kWrite;
    note_access(*stream, name, a, use.place.offset, use.bytes, use.access);
  }
}

}  // namespace simcuda

__attribute__((visibility("default"))) void* simcuda_at(uint64_t address, size_t bytes) {
  using namespace simcuda;
  Place place;
  Found found;
  {
    std::unique_lock lock(driver().mutex);
    found = find_device_address(address, bytes, place);
  }
  if (found == Found::kYes) return touch(place, bytes, Access::kUnknown);
  if (bytes == 0) return nullptr;
  const char* who = running ? running->name : "the host";
  static const char* const why[] = {"", " that nobody allocated", " beyond the end of an allocation", " after it was freed"};
  violation(std::string(who) + " uses " + std::to_string(bytes) + " bytes at " + hex(address) + why[static_cast<int>(found)]);
  return scratch(bytes);
}
