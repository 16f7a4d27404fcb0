// A Device is the interface to the memory, streams, events, copies and kernels of one accelerator. The engine's device
// code uses only this interface. The only implementation is core/devices/cuda, which uses the CUDA driver API.
//
// No call waits for the device unless its comment says so. The calling thread must have entered the device by creating
// a Turn object. The Turn makes the device's context current, and lets the thread use the device while another stream
// is being captured into a graph.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "kernels/launch.h"

namespace hvd {

class Device {
 public:
  // Stream from the framework or from make_stream(). Null is the framework's default stream.
  using Stream = void*;
  // Event of the device, with which the host or a stream waits for earlier work on a stream. See take_event().
  using Event = void*;

  virtual ~Device() = default;
  // Return the device number within this process.
  virtual int ordinal() const = 0;
  // Return the unique id of the device, which is the same in all processes.
  virtual std::array<uint8_t, 16> uuid() const = 0;
  // Return the compute capability as 10 * major + minor, or 0 if it is unknown.
  virtual int capability() const = 0;
  virtual int multiprocessors() const = 0;
  // Return a description for error messages, for example "CUDA GPU 0 (NVIDIA H200)".
  virtual const std::string& description() const = 0;

  // Create a stream that does not synchronize with the framework's default stream.
  virtual Status make_stream(Stream* out) = 0;
  // Set `out` to true if the stream is being captured into a graph. The engine cannot execute operations submitted on
  // such a stream.
  virtual Status capturing(Stream stream, bool* out) = 0;

  // Take an event from the pool. An event that has never been recorded is treated as reached.
  virtual Status take_event(Event* out) = 0;
  // Return an event to the pool. The caller must not use it afterwards.
  virtual void give_back(Event event) = 0;
  virtual Status record(Event event, Stream stream) = 0;
  // Make later work on `stream` wait until the device reaches `event`.
  virtual Status wait(Stream stream, Event event) = 0;
  // Set `out` to true if the device has finished the work before the event. An error means that the device has failed.
  virtual Status reached(Event event, bool* out) = 0;

  // Copy memory in stream order. `from` and `to` are device memory, or host memory from pin().
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream) = 0;

  virtual Status zero(void* to, size_t bytes, Stream stream) = 0;

  // Allocate or free device memory. Both calls can wait for all work on the device, so do not make them while an
  // operation waits for other ranks.
  virtual Status allocate(size_t bytes, void** out) = 0;
  virtual void free(void* memory) = 0;

  // Handle to device memory that processes on this host share (CUDA IPC). A handle is valid only in processes other
  // than its creator.
  using Handle = std::array<std::byte, 64>;
  // Return a handle for `memory`, which must be a whole block from allocate().
  virtual Status share(void* memory, Handle* out) = 0;
  // Open or close memory of another process, which must not free the memory before close(). Both calls can wait for all
  // work on the device.
  virtual Status open(const Handle& handle, void** out) = 0;
  virtual void close(void* memory) = 0;

  // Map existing host memory, in whole pages, into the device's address space, and store the address there in
  // `on_device`. Registering and unregistering can wait for all work on the device.
  virtual Status register_host(std::byte* memory, size_t bytes, std::byte** on_device) = 0;
  virtual void unregister_host(std::byte* memory) = 0;
  // write_word() writes a 32-bit word in registered memory after all earlier work on the stream. await_word() makes later work wait until a
  // word is at or past `value`. Words are counters that can wrap around, so the two must differ by less than 2^31. The host can write words
  // too.
  virtual Status write_word(std::byte* word, uint32_t value, Stream stream) = 0;
  virtual Status await_word(const std::byte* word, uint32_t value, Stream stream) = 0;

  // Allocate host memory that the device accesses directly. This can wait for work on the device, so it is called only
  // when a PinnedPool grows.
  virtual Status pin(size_t bytes, std::byte** out) = 0;
  virtual void unpin(std::byte* memory) = 0;

  // Load all kernels of core/kernels, so that launches never have to load one. Call this before anything waits for other ranks: it can wait
  // for all work on the device, and takes seconds if the driver has to compile the kernels. Later calls return the result of the first
  // call. An error explains why this driver and device cannot run the kernels.
  virtual Status load_kernels() = 0;
  // Launch the kernel with index `kernel` in kernels::all(), in stream order. Requires load_kernels(). The parameters
  // are copied before the call returns.
  virtual Status launch(size_t kernel, const void* parameters, kernels::Geometry geometry, Stream stream) = 0;

  // RAII scope in which the calling thread can use the device.
  class Turn {
   public:
    explicit Turn(Device& device) : device_(device), status_(device.enter(&mode_)) {}
    ~Turn() {
      if (status_.ok()) device_.leave(mode_);
    }
    Turn(const Turn&) = delete;
    const Status& status() const { return status_; }

   private:
    Device& device_;
    int mode_ = 0;
    Status status_;
  };

  // Begin or end a Turn, for callers that cannot hold a Turn object. Pass the `mode` from enter() to leave().
  virtual Status enter(int* mode) = 0;
  virtual void leave(int mode) = 0;
};

}  // namespace hvd
