// Allocated and freed memory, and access checks.
#include "memory.h"

#include <cstdio>

#include "races.h"

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

}  // namespace

std::string hex(Address address) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
  return text;
}

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
    if (allocation->context == context) {
      if (allocation->header && allocation->kind == Allocation::kDevice) allocation->header->freed = 1;
      remove(allocation, "the end of the context");
    }
}

}  // namespace simcuda
