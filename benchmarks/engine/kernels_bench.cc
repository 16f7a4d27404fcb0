// Measures the bandwidth of the device kernels, compared with a copy on the device, and the time to load them.
//
//   kernels_bench [MiB per buffer, 256] [seconds per row, 0.5] [driver, libcuda.so.1]
//
// Uses the driver's first device. Bandwidth counts bytes read and bytes written. For each row, the program launches a
// kernel until the row's time is up, reads the clock after every eight launches, and prints the median. Times from a
// simulated driver mean nothing.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/launch.h"

namespace {

using namespace hvd;
using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

class Device {
 public:
  explicit Device(const char* driver) : library_(dlopen(driver, RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) stop(dlerror());
    int device = 0;
    void* context = nullptr;
    call<unsigned>("cuInit", 0);
    call<int*, int>("cuDeviceGet", &device, 0);
    call<void**, int>("cuDevicePrimaryCtxRetain", &context, device);
    call<void*>("cuCtxPushCurrent_v2", context);
    call<int*, int, int>("cuDeviceGetAttribute", &multiprocessors, 16, device);
    call<char*, int, int>("cuDeviceGetName", name, sizeof name, device);
    call<void**, unsigned, int>("cuStreamCreateWithPriority", &stream_, 1, 0);
    call<void**, unsigned>("cuEventCreate", &event_, 2);
    const Clock::time_point start = Clock::now();
    void* module = nullptr;
    call<void**, const void*, unsigned, int*, void**>("cuModuleLoadDataEx", &module, kernels::kPtx, 0, nullptr, nullptr);
    functions_.resize(kernels::all().size());
    for (size_t k = 0; k < functions_.size(); ++k) {
      call<void**, void*, const char*>("cuModuleGetFunction", &functions_[k], module, kernels::all()[k].name);
      launch(k, {1, 32}, zeros_.data());
    }
    wait();
    load_s = Seconds(Clock::now() - start).count();
  }
  uint64_t memory(size_t bytes) {
    uint64_t address = 0;
    call<uint64_t*, size_t>("cuMemAlloc_v2", &address, bytes);
    call<uint64_t, unsigned char, size_t, void*>("cuMemsetD8Async", address, 0, bytes, stream_);
    return address;
  }
  void copy(uint64_t to, uint64_t from, size_t bytes) {
    call<uint64_t, uint64_t, size_t, void*>("cuMemcpyDtoDAsync_v2", to, from, bytes, stream_);
  }
  void launch(size_t kernel, kernels::Geometry geometry, const void* parameters) {
    void* arguments[] = {const_cast<void*>(parameters)};
    call<void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**>(
        "cuLaunchKernel", functions_[kernel], geometry.blocks, 1, 1, geometry.threads, 1, 1, 0, stream_, arguments, nullptr);
  }
  void wait() {
    call<void*, void*>("cuEventRecord", event_, stream_);
    call<void*>("cuEventSynchronize", event_);
  }

  int multiprocessors = 0;
  char name[128] = {};
  double load_s = 0;

 private:
  [[noreturn]] static void stop(const char* why) {
    fprintf(stderr, "kernels_bench: %s\n", why);
    exit(1);
  }
  template <class... Arguments>
  void call(const char* name, Arguments... arguments) {
    auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    if (!function) stop((std::string("the driver has no ") + name).c_str());
    if (const int result = function(arguments...)) stop((std::string(name) + " gave " + std::to_string(result)).c_str());
  }

  void* library_;
  void* stream_ = nullptr;
  void* event_ = nullptr;
  std::vector<void*> functions_;
  std::vector<std::byte> zeros_ = std::vector<std::byte>(sizeof(kernels::PackParameters));
};

struct Bench {
  Device& device;
  double seconds;

  // `moved` is the number of bytes that one call of `work` reads and writes.
  void row(const std::string& text, double moved, const std::function<void()>& work) {
    constexpr int kAtOnce = 8;
    work();
    device.wait();
    std::vector<double> each;
    const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(seconds));
    while (each.size() < 3 || Clock::now() < end) {
      const Clock::time_point start = Clock::now();
      for (int i = 0; i < kAtOnce; ++i) work();
      device.wait();
      each.push_back(Seconds(Clock::now() - start).count() / kAtOnce);
    }
    std::sort(each.begin(), each.end());
    const double median = each[each.size() / 2];
    printf("%-52s %10.1f us %9.1f GB/s\n", text.c_str(), median * 1e6, moved / median * 1e-9);
  }
};

kernels::ReduceParameters reduction(std::span<const uint64_t> buffers, size_t elements) {
  kernels::ReduceParameters p{};
  for (uint64_t buffer : buffers) p.sources[p.source_count++] = p.destinations[p.destination_count++] = buffer;
  p.end = elements;
  p.scaling = kernels::scaling_of(1.0, static_cast<int64_t>(buffers.size()));
  return p;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t bytes = static_cast<size_t>(argc > 1 ? atoi(argv[1]) : 256) << 20;
  Device device(argc > 3 ? argv[3] : "libcuda.so.1");
  Bench bench{device, argc > 2 ? atof(argv[2]) : 0.5};
  printf("%s, %d multiprocessors; %zu kernels loaded and launched in %.2f s; buffers of %zu MiB\n", device.name, device.multiprocessors,
         kernels::all().size(), device.load_s, bytes >> 20);
  std::vector<uint64_t> buffers;
  for (int i = 0; i < 8; ++i) buffers.push_back(device.memory(bytes));
  const double size = static_cast<double>(bytes);

  bench.row("the driver's copy on the device", 2 * size, [&] { device.copy(buffers[1], buffers[0], bytes); });
  for (DType d : {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int32, DType::int8}) {
    const std::string name(name_of(d));
    const size_t elements = bytes / size_of(d);
    const kernels::Geometry geometry = kernels::geometry(elements, size_of(d), device.multiprocessors);
    for (size_t ranks : {2, 4, 8}) {
      const kernels::ReduceParameters p = [&] {
        kernels::ReduceParameters sum = reduction(std::span(buffers).first(ranks), elements);
        if (!is_float(d)) sum.scaling = {};
        return sum;
      }();
      bench.row("reduce_" + name + ", " + std::to_string(ranks) + " buffers, into all", 2 * size * static_cast<double>(ranks),
                [&] { device.launch(kernels::reduce_of(d), geometry, &p); });
    }
    const kernels::ScaleParameters p{buffers[0], buffers[0], elements, kernels::scaling_of(0.5, 1)};
    bench.row("scale_" + name + " in place", 2 * size, [&] { device.launch(kernels::scale_of(d), geometry, &p); });
  }
  for (size_t pieces : {1, 64, 512}) {
    auto p = std::make_unique<kernels::PackParameters>();
    std::vector<kernels::Move> moves;
    const size_t each = bytes / pieces;
    for (size_t i = 0; i < pieces; ++i) moves.push_back({buffers[0] + i * each, buffers[1] + i * each, each});
    kernels::fill(p.get(), moves, 1, device.multiprocessors);
    bench.row("pack_bytes, " + std::to_string(pieces) + " pieces", 2 * size,
              [&] { device.launch(kernels::pack_bytes_of(), kernels::geometry(*p), p.get()); });
    for (kernels::Move& move : moves) move.elements = each / 4;
    kernels::fill(p.get(), moves, 4, device.multiprocessors);
    p->scaling = kernels::scaling_of(0.5, 1);
    bench.row("pack_float32_to_float16, " + std::to_string(pieces) + " pieces", 1.5 * size,
              [&] { device.launch(*kernels::pack_of(DType::float32, DType::float16), kernels::geometry(*p), p.get()); });
  }
  // Small sizes show the cost of a launch, with few and with many parameters.
  auto p = std::make_unique<kernels::PackParameters>();
  const kernels::Move small[] = {{buffers[0], buffers[1], 4096}};
  kernels::fill(p.get(), small, 1, device.multiprocessors);
  bench.row("pack_bytes, 4 KiB", 8192, [&] { device.launch(kernels::pack_bytes_of(), kernels::geometry(*p), p.get()); });
  const kernels::ScaleParameters one{buffers[0], buffers[0], 1024, kernels::scaling_of(0.5, 1)};
  bench.row("scale_float32, 4 KiB", 8192, [&] { device.launch(kernels::scale_of(DType::float32), {1, kernels::kThreads}, &one); });
  bench.row("the driver's copy on the device, 4 KiB", 8192, [&] { device.copy(buffers[1], buffers[0], 4096); });
  return 0;
}
