// A CUDA driver of a page, whose GPU is a file ($FAKE_MEMORY); FAKE_INIT, FAKE_EXPORT, FAKE_OPEN: what these calls answer.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
  char bytes[64];
} Handle;
static int code(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : 0;
}
static void* map(const char* path, size_t size) {
  int fd = open(path, O_RDWR | O_CREAT, 0600);
  if (fd < 0 || ftruncate(fd, size)) return 0;
  void* memory = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return memory;
}
int cuInit(unsigned flags) {
  if (getenv("FAKE_HANGS"))
    for (;;) pause();
  if (getenv("FAKE_DIES")) abort();
  return flags ? 1 : code("FAKE_INIT");
}
int cuGetErrorName(int number, const char** text) {
  *text = number == 803 ? "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" : 0;
  return !*text;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = (void*)(intptr_t)(device + 7);
  return 0;
}
int cuCtxPushCurrent_v2(void* context) { return context == (void*)7 ? 0 : 201; }
int cuMemAlloc(void) { abort(); }
int cuMemAlloc_v2(uint64_t* address, size_t size) {
  *address = (uint64_t)(uintptr_t)map(getenv("FAKE_MEMORY"), size);
  return *address ? 0 : 2;
}
int cuMemFree_v2(uint64_t address) {
  (void)address;
  return unlink(getenv("FAKE_MEMORY")) ? 1 : 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void* stream) {
  memcpy((void*)(uintptr_t)to, from, size);
  return stream ? 1 : 0;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void* stream) {
  memcpy(to, (void*)(uintptr_t)from, size);
  return stream ? 1 : 0;
}
int cuEventCreate(void** event, unsigned flags) {
  *event = (void*)9;
  return flags == 2 ? 0 : 1;
}
int cuEventRecord(void* event, void* stream) { return event == (void*)9 && !stream ? 0 : 400; }
int cuEventSynchronize(void* event) { return event == (void*)9 ? 0 : 400; }
int cuIpcGetMemHandle(Handle* handle, uint64_t address) {
  memset(handle, 0xa5, sizeof *handle);
  return address ? code("FAKE_EXPORT") : 1;
}
int cuIpcOpenMemHandle_v2(uint64_t* address, Handle handle, unsigned flags) {
  if (handle.bytes[0] != (char)0xa5 || handle.bytes[63] != (char)0xa5 || flags != 1) return 1;
  const char* other = getenv("FAKE_OTHER");
  *address = (uint64_t)(uintptr_t)map(other ? other : getenv("FAKE_MEMORY"), 2 << 20);
  return code("FAKE_OPEN");
}
int cuIpcCloseMemHandle(uint64_t address) {
  (void)address;
  return 0;
}
