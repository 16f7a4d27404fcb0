// Device: memory, streams, events, copies and kernels of one accelerator behind one small interface, used by the
// engine's device code. The only implementation so far is core/devices/cuda, on the CUDA driver.
//
// No call waits for the device's work unless its comment says so. Every call needs a Turn on the calling thread. The
// Turn makes the device's context current and lets the thread use the device while another stream is captured into a
// graph.
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
  using Stream = void*;  // A stream of the framework or of make_stream(); null is the framework's default stream.
  using Event = void*;   // An event from take_event().

  virtual ~Device() = default;
  virtual int ordinal() const = 0;                  // Device number within this process.
  virtual std::array<uint8_t, 16> uuid() const = 0;  // Unique id of the device, equal in all processes.
  virtual int capability() const = 0;                // Compute capability as 10 * major + minor; 0 if unknown.
  virtual int multiprocessors() const = 0;
  virtual const std::string& description() const = 0;  // description for messages, for example "CUDA GPU 0 (NVIDIA H200)"

  // Create a stream that does not synchronize with the framework's default stream.
  virtual Status make_stream(Stream* out) = 0;
  // True if the stream is being captured into a graph. Operations submitted on it could not be executed.
  virtual Status capturing(Stream stream, bool* out) = 0;

  // Events come from a pool. An event that was never recorded counts as reached.
  virtual Status take_event(Event* out) = 0;
  virtual void give_back(Event event) = 0;  // call this when no more waits for the event will be issued
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;  // Makes later work on the stream wait for the recorded work.
  // Sets `out` to true if the event is reached. An error means that the device has failed.
  virtual Status reached(Event event, bool* out) = 0;

  // Copy in stream order. `from` and `to` are device memory or memory from pin().
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream) = 0;

  virtual Status zero(void* to, size_t bytes, Stream stream) = 0;

  // Allocate and free device memory. Both calls may wait for all work on the device, so do not call them while an
  // operation waits for other ranks.
  virtual Status allocate(size_t bytes, void** out) = 0;
  virtual void free(void* memory) = 0;

  // Device memory shared with other processes of this host (CUDA IPC). A handle is valid only in processes other than
  // the one that created it.
  using Handle = std::array<std::byte, 64>;
  virtual Status share(void* memory, Handle* out) = 0;  // `memory` must be a whole block from allocate().
  // Open or close memory of another process, which must not free it before close(). Both calls may wait for all work on
  // the device.
  virtual Status open(const Handle& handle, void** out) = 0;
  virtual void close(void* memory) = 0;

  // Make existing host memory, in whole pages, accessible to the device at the address `on_device`. Both calls may wait
  // for all work on the device.
  virtual Status register_host(std::byte* memory, size_t bytes, std::byte** on_device) = 0;
  virtual void unregister_host(std::byte* memory) = 0;
  // Operations on 32-bit words in registered memory, in stream order. write_word() writes a word after all earlier work
  // of the stream. await_word() makes later work wait until the word is at or past `value`. The difference must be
  // below 2^31, so counters may wrap around. The host may write the words too.
  virtual Status write_word(std::byte* word, uint32_t value, Stream stream) = 0;
  virtual Status await_word(const std::byte* word, uint32_t value, Stream stream) = 0;

  // Allocate host memory that the device accesses directly. This may wait for the device, so it is used only when a
  // PinnedPool grows.
  virtual Status pin(size_t bytes, std::byte** out) = 0;
  virtual void unpin(std::byte* memory) = 0;

  // Load all kernels of core/kernels, so that none is loaded at its first launch. This may wait for all work on the
  // device, and takes seconds if the driver has to compile the kernels. So call it before anything waits for other
  // ranks. Later calls return the first result. An error says why this driver and device cannot run the kernels.
  virtual Status load_kernels() = 0;
  // Launch kernel number `kernel` of kernels::all() in stream order, after load_kernels(). The call copies the
  // parameters.
  virtual Status launch(size_t kernel, const void* parameters, kernels::Geometry geometry, Stream stream) = 0;

  // Scope in which the calling thread may use the device.
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

  // The two halves of a Turn, for callers that cannot hold one. Pass the `mode` from enter() to leave().
  virtual Status enter(int* mode) = 0;
  virtual void leave(int mode) = 0;
};

}  // namespace hvd
