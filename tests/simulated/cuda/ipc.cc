// Memory of other processes. A handle names the exporter's file (/proc/PID/fd/N) and a place in
// it. An importer holds a read lock on the first byte of the allocation's header, so that the exporter sees
// exactly the living importers.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "events.h"
#include "memory.h"

namespace simcuda {
namespace {

constexpr uint64_t kMemoryMagic = 0x6d656d6f72793031;

struct Handle {
  uint64_t magic;
  int32_t process, file;
  uint64_t inode;
  uint64_t offset, bytes, header;
  uint32_t shift;
};
static_assert(sizeof(Handle) <= 64);

uint64_t inode_of(int file) {
  struct stat found{};
  return fstat(file, &found) == 0 ? found.st_ino : 0;
}

Handle handle_here(uint64_t magic) {
  Handle handle{};
  handle.magic = magic;
  handle.process = getpid();
  handle.file = device_file();
  handle.inode = inode_of(device_file());
  return handle;
}

struct flock byte_lock(short type, uint64_t at) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_start = static_cast<off_t>(at);
  lock.l_len = 1;
  return lock;
}

// The exporter's file; -1 if that process has ended.
int open_file(const Handle& handle) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return -1;
  if (inode_of(file) == handle.inode) return file;
  close(file);
  return -1;
}

template <typename Bytes>
int check_handle(const Bytes& bytes, uint64_t magic, Handle& handle) {
  std::memcpy(&handle, &bytes, sizeof handle);
  if (handle.magic != magic) return kInvalidValue;
  if (handle.process == getpid()) return kInvalidContext;  // the exporter itself must use its pointer
  return knobs().no_ipc ? static_cast<int>(kInvalidValue) : kSuccess;
}

std::shared_ptr<Allocation> opened_already(const std::string& handle, Context* context) {
  for (auto& allocation : live_allocations())
    if (allocation->kind == Allocation::kImported && allocation->handle == handle && allocation->context == context) return allocation;
  return nullptr;
}

ExportHeader* map_header(int file, uint64_t offset) {
  void* memory = mmap(nullptr, sizeof(ExportHeader), PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
  return memory == MAP_FAILED ? nullptr : static_cast<ExportHeader*>(memory);
}

std::shared_ptr<Allocation> import(const Handle& handle, Context* context) {
  auto created = std::make_shared<Allocation>();
  created->kind = Allocation::kImported;
  created->context = context;
  created->bytes = handle.bytes;
  created->file = open_file(handle);
  if (created->file < 0) return nullptr;
  struct flock reader = byte_lock(F_RDLCK, handle.header);
  created->header = map_header(created->file, handle.header);
  if (!created->header || created->header->freed || fcntl(created->file, F_OFD_SETLK, &reader)) return nullptr;
  const Address start = reserve(handle.bytes + handle.shift);
  void* memory = map_file(created->file, handle.offset, handle.bytes + handle.shift, *created);
  if (!start || !memory) return nullptr;
  created->base = start + handle.shift;
  created->host = static_cast<std::byte*>(memory) + handle.shift;
  add(created);
  return created;
}

}  // namespace

void end_export(Allocation& allocation) {
  struct flock write_lock = byte_lock(F_WRLCK, allocation.header_offset);
  if (fcntl(device_file(), F_OFD_GETLK, &write_lock) == 0 && write_lock.l_type != F_UNLCK)
    violation("cuMemFree_v2 of " + describe(allocation) + ", which another process has open");
  allocation.header->freed = 1;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

int cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  SIMCUDA_CALL(cuIpcGetMemHandle, kNeedsContext);
  if (knobs().no_ipc == 2) return kNotSupported;
  Place place;
  const Found found = find_device_address(address, 1, place);
  if (found == Found::kFreed) violation("cuIpcGetMemHandle of memory that was freed");
  if (!out || found != Found::kYes) return kInvalidValue;
  Allocation& a = *place.allocation;
  if (a.kind != Allocation::kDevice) return kInvalidValue;
  if (!a.header) {
    a.header_offset = file_space(sizeof(ExportHeader));
    a.header = a.header_offset ? map_header(device_file(), a.header_offset) : nullptr;
    if (!a.header) return kOutOfMemory;
  }
  Handle handle = handle_here(kMemoryMagic);  // of the base, wherever in the allocation the address is
  handle.offset = a.offset;
  handle.bytes = a.bytes;
  handle.header = a.header_offset;
  handle.shift = static_cast<uint32_t>(a.base % 4096);
  std::memset(out, 0, sizeof *out);
  std::memcpy(out, &handle, sizeof handle);
  return kSuccess;
}

int cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle bytes, unsigned flags) {
  SIMCUDA_CALL(cuIpcOpenMemHandle_v2, kNeedsContext | kUnsafe | kMayWait);
  if (!address || flags != kIpcLazyPeerAccess) return kInvalidValue;
  Handle handle;
  if (int error = check_handle(bytes, kMemoryMagic, handle)) return error;
  const std::string text(bytes.reserved, sizeof bytes.reserved);
  auto allocation = opened_already(text, call.context);
  if (!allocation) allocation = import(handle, call.context);
  if (!allocation) return kInvalidValue;
  allocation->handle = text;
  ++allocation->openings;
  *address = allocation->base;
  return kSuccess;
}

int cuIpcCloseMemHandle(CUdeviceptr address) {
  SIMCUDA_CALL(cuIpcCloseMemHandle, kNeedsContext | kUnsafe | kMayWait);
  Place place;
  const Found found = find_device_address(address, 1, place);
  if (found == Found::kFreed) violation("cuIpcCloseMemHandle of memory that was closed already");
  if (found != Found::kYes || place.offset || place.allocation->kind != Allocation::kImported) return kInvalidValue;
  if (--place.allocation->openings == 0) remove(place.allocation, call.name);
  return kSuccess;
}

}  // extern "C"
