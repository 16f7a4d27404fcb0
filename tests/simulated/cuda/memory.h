// Device memory, and pinned memory of the host.
//
// Device memory has two addresses: the public one, which CUDA's callers see and may not access (PROT_NONE),
// and the host's, which only simulated work uses. Its bytes are in one sparse file for each process, which
// other processes map when they open an IPC handle.
#pragma once

#include "driver.h"

namespace simcuda {

using Address = uint64_t;

// Status of exported memory for its importers, on a separate page.
struct ExportHeader {
  std::atomic<uint32_t> freed;
};

struct Allocation {
  enum Kind { kDevice, kImported, kPinned, kRegistered };
  Kind kind = kDevice;
  Address base = 0;  // the device's address
  size_t bytes = 0;
  std::byte* host = nullptr;
  Context* context = nullptr;
  uint64_t id = 0;
  bool freed = false;
  int users = 0;  // running pieces of work that use it
  // Offset of its bytes in the process's file, and of its header once exported.
  uint64_t offset = 0, header_offset = 0;
  ExportHeader* header = nullptr;
  // Imported memory only: the exporter's file as opened here, its handle, and how often it was opened.
  int file = -1;
  std::string handle;
  int openings = 0;
  // Mappings to remove at the end.
  void* mapping = nullptr;
  size_t mapped = 0;

  Allocation() = default;
  Allocation(const Allocation&) = delete;
  ~Allocation();
  Address end() const { return base + bytes; }
  bool on_host() const { return kind == kPinned || kind == kRegistered; }
};

// Part of an allocation; pageable host memory has none.
struct Place {
  std::shared_ptr<Allocation> allocation;
  size_t offset = 0;
  std::byte* pageable = nullptr;
};

enum class Found { kYes, kUnknown, kOutside, kFreed };
enum class Access { kRead, kWrite, kUnknown };

// All of these need the lock.
Found find_device_address(Address address, size_t bytes, Place& place);
Found find_host_address(const void* memory, size_t bytes, Place& place);
std::vector<std::shared_ptr<Allocation>> live_allocations();
void add(const std::shared_ptr<Allocation>& allocation);
void remove(const std::shared_ptr<Allocation>& allocation, const char* caller);
void free_all_of(Context* context);
std::string describe(const Allocation& allocation);
std::string hex(Address address);

// address_space.cc
Address reserve(size_t bytes);  // reserves public addresses
int device_file();  // the file of this process
uint64_t file_space(size_t bytes);  // allocates space in it
void* map_file(int file, uint64_t offset, size_t bytes, Allocation& owner);  // between two guard pages
size_t whole_pages(size_t bytes);
void set_poisoned(void* memory, size_t bytes, bool poisoned);  // for the address sanitizer; otherwise does nothing

// ipc.cc: marks exported memory as freed for importers; a violation while one has it open.
void end_export(Allocation& allocation);

}  // namespace simcuda
