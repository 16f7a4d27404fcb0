// Device: memory, streams, events, copies and kernels of one accelerator behind one small interface, used by the
// engine's device code. core/devices/cuda is the only implementation so far, over CUDA's driver.
//
// No call waits for the device's work unless stated. Every call needs a Turn on the calling thread, which makes the
// device's context current and lets the thread use the device while another stream is captured into a graph.
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
  using Stream = void*;  // a stream of the framework or of make_stream(); null: the framework's default stream
  using Event = void*;   // an event from take_event()

  virtual ~Device() = default;
  virtual int ordinal() const = 0;                  // device number within the process
  virtual std::array<uint8_t, 16> uuid() const = 0;  // unique, and equal in all processes
  virtual int capability() const = 0;                // compute capability: 10 * major + minor; 0: unknown
  virtual int multiprocessors() const = 0;
  virtual const std::string& description() const = 0;  // text for messages: "CUDA GPU 0 (NVIDIA H200)"

  // Create a stream that does not synchronize with the framework's default stream.
  virtual Status make_stream(Stream* out) = 0;
  // True if the stream is being captured into a graph; operations submitted there could not be executed.
  virtual Status capturing(Stream stream, bool* out) = 0;

  // Events come from a pool; an event that was never recorded counts as reached.
  virtual Status take_event(Event* out) = 0;
  virtual void give_back(Event event) = 0;  // call it when no more waits for the event will be issued
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;  // makes later work on the stream wait for the recorded work
  virtual Status reached(Event event, bool* out) = 0;   // an error means that the device has failed

  // In stream order; from and to: device memory or memory from pin().
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream) = 0;

  virtual Status zero(void* to, size_t bytes, Stream stream) = 0;

  // Device memory. Both calls may wait for all work on the device, so do not call them while an operation waits for
  // other ranks.
  virtual Status allocate(size_t bytes, void** out) = 0;
  virtual void free(void* memory) = 0;

  // Device memory shared with other processes of this host (CUDA IPC). A handle is valid only in other processes, not
  // in the one that created it.
  using Handle = std::array<std::byte, 64>;
  virtual Status share(void* memory, Handle* out) = 0;  // `memory` must be a whole block from allocate()
  // Memory of another process, which must not free it before close(). Both calls may wait for all work on the device.
  virtual Status open(const Handle& handle, void** out) = 0;
  virtual void close(void* memory) = 0;

  // Make existing host memory, in whole pages, accessible to the device at `on_device`. Both calls may wait for all
  // work on the device.
  virtual Status register_host(std::byte* memory, size_t bytes, std::byte** on_device) = 0;
  virtual void unregister_host(std::byte* memory) = 0;
  // 32-bit words in registered memory, in stream order. write_word() writes one after all earlier work of the stream.
  // await_word() makes later work wait until it is `value` or beyond, by less than 2^31, so counters may wrap around.
  // The host may write the words too.
  virtual Status write_word(std::byte* word, uint32_t value, Stream stream) = 0;
  virtual Status await_word(const std::byte* word, uint32_t value, Stream stream) = 0;

  // Host memory that the device accesses directly. May wait for the device; only used for growth, see PinnedPool.
  virtual Status pin(size_t bytes, std::byte** out) = 0;
  virtual void unpin(std::byte* memory) = 0;

  // Load all kernels of core/kernels, so that none is loaded at its first launch. May wait for all work on the device,
  // and takes seconds if the driver has to compile them; so call it before anything waits for other ranks. Later calls
  // return the first result. An error says why this driver and device cannot run them.
  virtual Status load_kernels() = 0;
  // Launch kernel number `kernel` of kernels::all() in stream order, after load_kernels(). The parameters are copied at
  // the call.
  virtual Status launch(size_t kernel, const void* parameters, kernels::Geometry geometry, Stream stream) = 0;

  // Lets the calling thread use the device during its lifetime.
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

  // The two halves of a Turn, for callers that cannot hold one. `mode`: pass to leave().
  virtual Status enter(int* mode) = 0;
  virtual void leave(int mode) = 0;
};

}  // namespace hvd
