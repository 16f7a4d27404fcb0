// What is allocated, what was freed, and who may touch it.
#include "memory.h"

#include <sys/mman.h>

#include <cstring>

#include "races.h"
#include "streams.h"

namespace simcuda {
namespace {

struct Tables {
  std::map<Address, std::shared_ptr<Allocation>> live;       // by the device's address
  std::map<Address, std::shared_ptr<Allocation>> host;       // pinned and registered memory by the host's address
  std::map<Address, std::pair<Address, std::string>> freed;  // end and description by address
};
Tables& tables() {
  static Tables* const all = new Tables;
  return *all;
}

thread_local Running* running = nullptr;

template <typename Map>
auto containing(Map& map, Address address) {
  auto next = map.upper_bound(address);
  return next == map.begin() ? map.end() : std::prev(next);
}

Found in(const std::map<Address, std::shared_ptr<Allocation>>& map, Address address, size_t bytes, Place& place) {
  auto found = containing(map, address);
  if (found == map.end() || address >= found->first + found->second->bytes) return Found::kUnknown;
  place = {found->second, address - found->first, nullptr};
  return bytes > found->second->bytes - place.offset ? Found::kOutside : Found::kYes;
}

bool was_freed(Address address) {
  auto found = containing(tables().freed, address);
  return found != tables().freed.end() && address < found->second.first;
}

std::string hex(Address address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

// Are all pages of registered memory still those of the beginning? A hole that was punched would leave the old page to the device.
bool pages_are_there(const std::byte* memory, size_t bytes) {
  const Address first = reinterpret_cast<Address>(memory) / 4096 * 4096;
  const size_t count = (reinterpret_cast<Address>(memory) + bytes - first + 4095) / 4096;
  std::vector<unsigned char> resident(count);
  if (mincore(reinterpret_cast<void*>(first), count * 4096, resident.data())) return false;
  for (unsigned char page : resident)
    if (!(page & 1)) return false;
  return true;
}

// What is wrong with touching it; empty when nothing is. With the lock.
std::string objection(const Allocation& allocation, size_t offset, size_t bytes) {
  const std::string what = std::string(running ? running->name : "the host") + " uses " + describe(allocation);
  if (allocation.freed) return what + " after it was " + (allocation.kind == Allocation::kImported ? "closed" : "freed");
  if (allocation.kind == Allocation::kImported && allocation.header->freed) return what + " after its exporter freed it";
  if (allocation.kind == Allocation::kRegistered && knobs().holes && !pages_are_there(allocation.host + offset, bytes))
    return what + " whose pages were taken away (a hole punched, or unmapped) while it was registered";
  if (running && running->kernel && running->stream && !allocation.on_host() && allocation.context != running->stream->context)
    return what + " on device " + std::to_string(running->stream->context->device) + " without access to that peer";
  return {};
}

// Memory for work that must go on after a violation was collected; kept, since nobody says when it ends.
std::byte* scratch(size_t bytes) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::unique_ptr<std::byte[]>>;
  std::unique_lock lock(mutex);
  return kept->emplace_back(new std::byte[bytes]()).get();
}

}  // namespace

std::string describe(const Allocation& allocation) {
  static const char* const kinds[] = {"device memory ", "imported memory ", "pinned memory ", "registered memory "};
  std::string text = kinds[allocation.kind] + hex(allocation.base) + " of " + std::to_string(allocation.bytes) + " bytes";
  if (!allocation.on_host()) text += " on device " + std::to_string(allocation.context->device);
  return text;
}

Found find_device_address(Address address, size_t bytes, Place& place) {
  const Found found = in(tables().live, address, bytes, place);
  return found == Found::kUnknown && was_freed(address) ? Found::kFreed : found;
}

Found find_host_address(const void* memory, size_t bytes, Place& place) {
  return in(tables().host, reinterpret_cast<Address>(memory), bytes, place);
}

std::vector<std::shared_ptr<Allocation>> live_allocations() {
  std::vector<std::shared_ptr<Allocation>> all;
  for (auto& [base, allocation] : tables().live) all.push_back(allocation);
  return all;
}

void add(const std::shared_ptr<Allocation>& allocation) {
  static uint64_t last = 0;
  allocation->id = ++last;
  auto& freed = tables().freed;
  for (auto at = freed.lower_bound(allocation->base); at != freed.end() && at->first < allocation->end();) at = freed.erase(at);
  tables().live[allocation->base] = allocation;
  if (allocation->on_host()) tables().host[reinterpret_cast<Address>(allocation->host)] = allocation;
}

void remove(const std::shared_ptr<Allocation>& allocation, const char* caller) {
  if (allocation->users) violation(std::string(caller) + ": running work uses " + describe(*allocation));
  allocation->freed = true;
  tables().live.erase(allocation->base);
  if (allocation->on_host()) tables().host.erase(reinterpret_cast<Address>(allocation->host));
  if (!allocation->on_host()) tables().freed[allocation->base] = {allocation->end(), describe(*allocation)};
  forget_accesses(*allocation);
}

void free_all_of(Context* context) {
  for (auto& allocation : live_allocations())
    if (allocation->context == context && !allocation->on_host()) {
      if (allocation->header && allocation->kind == Allocation::kDevice) allocation->header->freed = 1;
      remove(allocation, "the end of the context");
    }
}

std::byte* touch(const Place& place, size_t bytes, Access access) {
  if (place.pageable || bytes == 0) return place.pageable;
  std::unique_lock lock(driver().mutex);
  Allocation& allocation = *place.allocation;
  if (std::string wrong = objection(allocation, place.offset, bytes); !wrong.empty()) {
    violation(wrong);
    return scratch(bytes);
  }
  if (running) {
    ++allocation.users;
    running->touched.push_back(place.allocation);
    if (running->stream) note_access(*running->stream, running->name, allocation, place.offset, bytes, access);
  }
  return allocation.host + place.offset;
}

Running::Running(Stream* stream, const char* name, bool kernel) : stream(stream), name(name), kernel(kernel) { running = this; }

Running::~Running() {
  running = nullptr;
  std::unique_lock lock(driver().mutex);
  for (auto& allocation : touched) {
    --allocation->users;
    if (allocation->kind == Allocation::kImported && allocation->header->freed)
      violation(std::string(name) + " ran with " + describe(*allocation) + ", which its exporter freed meanwhile");
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
