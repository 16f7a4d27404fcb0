#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

TEST_CASE("memory: base and size of an inner pointer, and what is known of it") {
  Gpu gpu;
  CUdeviceptr memory = gpu.memory(100000), base = 0;
  size_t bytes = 0;
  CHECK(memory % 512 == 0);
  CHECK(cuMemGetAddressRange_v2(&base, &bytes, memory + 777) == 0);
  CHECK(base == memory);
  CHECK(bytes == 100000);
  int kind = 0, device = -1, capable = 0;
  CHECK(cuPointerGetAttribute(&kind, 2, memory + 1) == 0);
  CHECK(kind == 2);
  CHECK(cuPointerGetAttribute(&device, 9, memory) == 0);
  CHECK(device == 0);
  CHECK(cuPointerGetAttribute(&capable, 10, memory) == 0);
  CHECK(capable == 1);
  CHECK(cuPointerGetAttribute(&kind, 2, reinterpret_cast<CUdeviceptr>(&gpu)) == kInvalidValue);
  int which[] = {2, 9};
  void* values[] = {&kind, &device};
  CHECK(cuPointerGetAttributes(2, which, values, reinterpret_cast<CUdeviceptr>(&gpu)) == 0);
  CHECK(kind == 0);
  CHECK(device == -2);
  CHECK(cuMemFree_v2(memory + 512) == kInvalidValue);
  CHECK(cuMemFree_v2(memory) == 0);
}

TEST_CASE("memory: the limit, the failing allocation, and the count of what is left") {
  Gpu gpu;
  Set limit("memory", 1 << 20, 16LL << 30);
  CUdeviceptr memory = gpu.memory(1 << 19), other = 0;
  size_t available = 0, total = 0;
  CHECK(cuMemGetInfo_v2(&available, &total) == 0);
  CHECK(available == 1 << 19);
  CHECK(total == 1 << 20);
  CHECK(cuMemAlloc_v2(&other, (1 << 19) + 1) == kOutOfMemory);
  CHECK(cuMemFree_v2(memory) == 0);
  Set fails("fail_alloc", 2);
  memory = gpu.memory(8);
  CHECK(cuMemAlloc_v2(&other, 8) == kOutOfMemory);
  CHECK(cuMemAlloc_v2(&other, 8) == 0);
  CHECK(cuMemFree_v2(memory) == 0);
  CHECK(cuMemFree_v2(other) == 0);
}

TEST_CASE("memory: what was freed is noticed by kernels, copies and a second free") {
  Gpu gpu;
  CUstream stream = gpu.stream();
  char* host = gpu.pinned<char>(16);
  CUdeviceptr memory = gpu.memory(16);
  {
    Gate gate(stream);
    REQUIRE(cuMemcpyHtoDAsync_v2(memory, host, 16, stream) == 0);
    CHECK(cuMemFree_v2(memory) == 0);
    gate.open = true;
    gpu.finish(stream);
  }
  CHECK(complained("cuMemcpyHtoDAsync_v2 uses device memory"));
  CHECK(simcuda_at(memory, 16) != nullptr);
  CHECK(complained("after it was freed"));
  CHECK(cuMemFree_v2(memory) == kInvalidValue);
  CHECK(complained("freed already"));
  CHECK(cuMemcpyDtoHAsync_v2(host, memory, 16, stream) == kInvalidValue);
  CHECK(complained("cuMemcpyDtoHAsync_v2 of memory that was freed"));
  cuMemFreeHost(host);
}

TEST_CASE("memory: running past the end is noticed") {
  Gpu gpu;
  CUdeviceptr memory = gpu.memory(100);
  CUstream stream = gpu.stream();
  simcuda_at(memory + 50, 51);
  CHECK(complained("beyond the end"));
  CHECK(cuMemsetD8Async(memory, 0, 101, stream) == kInvalidValue);
#if !defined(__SANITIZE_ADDRESS__)
  static_cast<char*>(simcuda_at(memory, 100))[100] = 1;
  CHECK(cuMemFree_v2(memory) == 0);
  CHECK(complained("wrote 0 bytes behind the end"));
#endif
}

TEST_CASE("memory: an address that is used again is another allocation") {
  Gpu gpu;
  Set reuse("reuse", 1);
  CUdeviceptr memory = gpu.memory(12345);
  uint64_t before = 0, after = 0;
  CHECK(cuPointerGetAttribute(&before, 7, memory) == 0);
  CHECK(cuMemFree_v2(memory) == 0);
  CHECK(gpu.memory(12345) == memory);
  CHECK(cuPointerGetAttribute(&after, 7, memory) == 0);
  CHECK(before != after);
  CHECK(cuMemFree_v2(memory) == 0);
}

TEST_CASE("pinned memory: registered once, in whatever part, and found again") {
  Gpu gpu;
  void* memory = mmap(nullptr, 8 << 12, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char* pages = static_cast<char*>(memory);
  CHECK(cuMemHostRegister_v2(pages, 4 << 12, 3) == 0);
  CHECK(cuMemHostRegister_v2(pages + (3 << 12), 2 << 12, 3) == kHostMemoryAlreadyRegistered);
  CHECK(cuMemHostUnregister(pages + (1 << 12)) == kHostMemoryNotRegistered);
  CUdeviceptr address = 0;
  CHECK(cuMemHostGetDevicePointer_v2(&address, pages + 100, 0) == 0);
  CHECK(address == reinterpret_cast<CUdeviceptr>(pages) + 100);
  CHECK(simcuda_at(address, 100) == pages + 100);
  CHECK(cuMemHostGetDevicePointer_v2(&address, pages + (5 << 12), 0) == kInvalidValue);
  CHECK(cuMemHostUnregister(pages) == 0);
  CHECK(cuMemHostUnregister(pages) == kHostMemoryNotRegistered);
  {
    Set fails("fail_register", 1);
    CHECK(cuMemHostRegister_v2(pages, 4096, 3) == kOutOfMemory);
  }
  {
    Set alias("host_alias", 1);
    CHECK(cuMemHostRegister_v2(pages, 4096, 3) == 0);
    CHECK(cuMemHostGetDevicePointer_v2(&address, pages, 0) == 0);
    CHECK(address != reinterpret_cast<CUdeviceptr>(pages));
    CHECK(simcuda_at(address, 100) == pages);
    simcuda_at(reinterpret_cast<CUdeviceptr>(pages), 1);
    CHECK(complained("nobody allocated"));
    CHECK(cuMemHostUnregister(pages) == 0);
  }
  munmap(memory, 8 << 12);
}

TEST_CASE("pinned memory: a hole punched under a registered page is noticed") {
  Gpu gpu;
  const int file = memfd_create("pages", 0);
  REQUIRE(ftruncate(file, 4 << 12) == 0);
  void* memory = mmap(nullptr, 4 << 12, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(cuMemHostRegister_v2(memory, 4 << 12, 3) == 0);
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  CHECK(simcuda_at(address, 4 << 12) == memory);
  REQUIRE(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1 << 12, 1 << 12) == 0);
  simcuda_at(address, 1 << 12);
  CHECK(std::string(simcuda_violations()) == "");
  simcuda_at(address, 2 << 12);
  CHECK(complained("whose pages were taken away"));
  CHECK(cuMemHostUnregister(memory) == 0);
  munmap(memory, 4 << 12);
  close(file);
}
