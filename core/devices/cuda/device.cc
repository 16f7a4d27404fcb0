#include "devices/cuda/device.h"

#include <unistd.h>

#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "devices/cuda/driver.h"
#include "devices/cuda/kernels.h"

namespace hvd {
namespace {

// Stream flag: do not synchronize with the legacy default stream.
constexpr unsigned kNonBlocking = 1;
// Event flag: the event only orders work and measures no time.
constexpr unsigned kDisableTiming = 2;
// IPC flag: opening another GPU's memory also gives this GPU access to the memory.
constexpr unsigned kLazyPeerAccess = 1;
// Capture mode in which a thread can make any call while other threads capture.
constexpr int kRelaxed = 2;

CudaDriver::Pointer address(const void* p) { return reinterpret_cast<CudaDriver::Pointer>(p); }

class CudaDevice final : public Device {
 public:
  CudaDevice(const CudaDriver& driver, int ordinal, CudaDriver::Device device, CudaDriver::Context context, std::string description,
             std::array<uint8_t, 16> uuid, int capability, int multiprocessors)
      : driver_(driver), ordinal_(ordinal), device_(device), context_(context), description_(std::move(description)), uuid_(uuid),
        capability_(capability), multiprocessors_(multiprocessors), kernels_(driver) {}

  ~CudaDevice() override {
    {
      const Turn turn(*this);
      // If the context is unusable, the process is exiting or the context has failed. The driver then frees everything.
      if (!turn.status().ok()) return;
      for (Event event : events_) driver_.event_destroy(event);
      kernels_.unload();
      for (Stream stream : streams_) driver_.stream_destroy(stream);
    }
    driver_.primary_release(device_);
  }

  int ordinal() const override { return ordinal_; }
  std::array<uint8_t, 16> uuid() const override { return uuid_; }
  int capability() const override { return capability_; }
  int multiprocessors() const override { return multiprocessors_; }
  const std::string& description() const override { return description_; }

  Status make_stream(Stream* out) override {
    int least = 0, greatest = 0;
    HVD_RETURN_IF_ERROR(driver_.check(driver_.priority_range(&least, &greatest), "cuCtxGetStreamPriorityRange"));
    HVD_RETURN_IF_ERROR(driver_.check(driver_.stream_create(out, kNonBlocking, greatest), "cuStreamCreateWithPriority"));
    std::lock_guard lock(mutex_);
    streams_.push_back(*out);
    return {};
  }

  Status capturing(Stream stream, bool* out) override {
    int status = 0;
    const int code = driver_.stream_is_capturing(stream, &status);
    // If the default stream cannot be queried, a stream that synchronizes with it is being captured, so treat it as captured.
    *out = status != 0 || code == CudaDriver::kLegacyStreamUnusable;
    return *out ? Status() : driver_.check(code, "cuStreamIsCapturing");
  }

  Status take_event(Event* out) override {
    {
      std::lock_guard lock(mutex_);
      if (!events_.empty()) {
        *out = events_.back();
        events_.pop_back();
        return {};
      }
    }
    return driver_.check(driver_.event_create(out, kDisableTiming), "cuEventCreate");
  }

  void give_back(Event event) override {
    std::lock_guard lock(mutex_);
    events_.push_back(event);
  }

  Status record(Event event, Stream stream) override { return driver_.check(driver_.event_record(event, stream), "cuEventRecord"); }
  Status wait(Stream stream, Event event) override { return driver_.check(driver_.stream_wait(stream, event, 0), "cuStreamWaitEvent"); }

  Status reached(Event event, bool* out) override {
    const int code = driver_.event_query(event);
    *out = code == 0;
    return code == CudaDriver::kNotReady ? Status() : driver_.check(code, "cuEventQuery");
  }

  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return bytes == 0 ? Status() : driver_.check(driver_.copy(address(to), address(from), bytes, stream), "cuMemcpyAsync");
  }

  Status zero(void* to, size_t bytes, Stream stream) override {
    return bytes == 0 ? Status() : driver_.check(driver_.zero(address(to), 0, bytes, stream), "cuMemsetD8Async");
  }

  Status allocate(size_t bytes, void** out) override {
    CudaDriver::Pointer memory = 0;
    HVD_RETURN_IF_ERROR(driver_.check(driver_.alloc(&memory, bytes), "cuMemAlloc"));
    *out = reinterpret_cast<void*>(memory);
    return {};
  }
  void free(void* memory) override { driver_.free(address(memory)); }

  Status share(void* memory, Handle* out) override {
    CudaDriver::IpcHandle handle{};
    HVD_RETURN_IF_ERROR(driver_.check(driver_.ipc_share(&handle, address(memory)), "cuIpcGetMemHandle"));
    *out = std::bit_cast<Handle>(handle);
    return {};
  }
  Status open(const Handle& handle, void** out) override {
    CudaDriver::Pointer memory = 0;
    HVD_RETURN_IF_ERROR(
        driver_.check(driver_.ipc_open(&memory, std::bit_cast<CudaDriver::IpcHandle>(handle), kLazyPeerAccess), "cuIpcOpenMemHandle"));
    *out = reinterpret_cast<void*>(memory);
    return {};
  }
  void close(void* memory) override { driver_.ipc_close(address(memory)); }

  Status register_host(std::byte* memory, size_t bytes, std::byte** on_device) override {
    constexpr unsigned kPortable = 1, kMapped = 2;
    HVD_RETURN_IF_ERROR(driver_.check(driver_.register_host(memory, bytes, kPortable | kMapped), "cuMemHostRegister"));
    CudaDriver::Pointer pointer = 0;
    const Status status = driver_.check(driver_.address_of_host(&pointer, memory, 0), "cuMemHostGetDevicePointer");
    if (!status.ok()) driver_.unregister_host(memory);
    *on_device = reinterpret_cast<std::byte*>(pointer);
    return status;
  }
  void unregister_host(std::byte* memory) override { driver_.unregister_host(memory); }
  Status write_word(std::byte* word, uint32_t value, Stream stream) override {
    return driver_.check(driver_.write_word(stream, address(word), value, 0), "cuStreamWriteValue32");
  }
  Status await_word(const std::byte* word, uint32_t value, Stream stream) override {
    constexpr unsigned kAtLeast = 0;
    return driver_.check(driver_.await_word(stream, address(word), value, kAtLeast), "cuStreamWaitValue32");
  }

  Status pin(size_t bytes, std::byte** out) override {
    void* memory = nullptr;
    HVD_RETURN_IF_ERROR(driver_.check(driver_.alloc_host(&memory, bytes), "cuMemAllocHost"));
    *out = static_cast<std::byte*>(memory);
    return {};
  }
  void unpin(std::byte* memory) override { driver_.free_host(memory); }

  Status load_kernels() override {
    return kernels_.load([this](Stream* out) { return make_stream(out); }).with(description_);
  }
  Status launch(size_t kernel, const void* parameters, kernels::Geometry geometry, Stream stream) override {
    return kernels_.launch(kernel, parameters, geometry, stream);
  }

  Status enter(int* mode) override {
    if (::getpid() != process_)
      return Status(Code::shutdown, description_ + " belongs to the parent process; a forked child cannot use it");
    HVD_RETURN_IF_ERROR(driver_.check(driver_.context_push(context_), "cuCtxPushCurrent"));
    *mode = kRelaxed;
    const Status status = driver_.check(driver_.exchange_capture_mode(mode), "cuThreadExchangeStreamCaptureMode");
    CudaDriver::Context ours;
    if (!status.ok()) driver_.context_pop(&ours);
    return status;
  }
  void leave(int mode) override {
    driver_.exchange_capture_mode(&mode);
    CudaDriver::Context ours;
    driver_.context_pop(&ours);
  }

 private:
  const CudaDriver& driver_;
  const int ordinal_;
  const CudaDriver::Device device_;
  const CudaDriver::Context context_;
  const std::string description_;
  const std::array<uint8_t, 16> uuid_;
  const int capability_, multiprocessors_;
  // Process that opened the device. A forked child must not call CUDA, because CUDA does not work after a fork.
  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  // Unused events, kept for reuse.
  std::vector<Event> events_;
  std::vector<Stream> streams_;
  CudaKernels kernels_;
};

Status make(const CudaDriver& driver, int ordinal, std::shared_ptr<Device>* out) {
  int count = 0;
  HVD_RETURN_IF_ERROR(driver.check(driver.device_count(&count), "cuDeviceGetCount"));
  if (ordinal < 0 || ordinal >= count) {
    return Status(Code::invalid_argument,
                  "CUDA GPU " + std::to_string(ordinal) + " does not exist; this process sees " + std::to_string(count) + " of them");
  }
  CudaDriver::Device device = 0;
  HVD_RETURN_IF_ERROR(driver.check(driver.device_get(&device, ordinal), "cuDeviceGet"));
  char name[128] = "";
  HVD_RETURN_IF_ERROR(driver.check(driver.device_name(name, sizeof name, device), "cuDeviceGetName"));
  std::array<uint8_t, 16> uuid{};
  HVD_RETURN_IF_ERROR(driver.check(driver.device_uuid(uuid.data(), device), "cuDeviceGetUuid"));
  constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;
  int multiprocessors = 1, major = 0, minor = 0;
  driver.device_attribute(&multiprocessors, kMultiprocessors, device);
  driver.device_attribute(&major, kMajor, device);
  driver.device_attribute(&minor, kMinor, device);
  CudaDriver::Context context = nullptr;
  HVD_RETURN_IF_ERROR(driver.check(driver.primary_retain(&context, device), "cuDevicePrimaryCtxRetain"));
  *out = std::make_shared<CudaDevice>(driver, ordinal, device, context, "CUDA GPU " + std::to_string(ordinal) + " (" + name + ")", uuid,
                                      10 * major + minor, multiprocessors);
  return {};
}

}  // namespace

Status open_cuda_device(const std::string& library, int ordinal, std::shared_ptr<Device>* out) {
  const CudaDriver* driver = nullptr;
  HVD_RETURN_IF_ERROR(cuda_driver(library, &driver));
  static std::mutex& mutex = *new std::mutex;
  static auto& open = *new std::map<int, std::weak_ptr<Device>>;
  std::lock_guard lock(mutex);
  std::weak_ptr<Device>& known = open[ordinal];
  if ((*out = known.lock())) return {};
  HVD_RETURN_IF_ERROR(make(*driver, ordinal, out));
  known = *out;
  return {};
}

}  // namespace hvd
