// Device: memory, streams, events, copies and kernels of one accelerator, behind one small interface. The engine's device side is
// written against it; core/devices/cuda is the one implementation so far, over CUDA's driver or
// over HIP.
//
// Nothing here waits for the device's work. Every call needs a Turn on the calling thread, which makes the device's context that thread's
// own for a moment and lets the thread touch the device while somebody else's stream is captured into a graph.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/device_kind.h"
#include "base/status.h"
#include "kernels/launch.h"

namespace hvd {

class Device {
 public:
  using Stream = void*;  // the framework's, or one of make_stream(); null is the framework's default stream
  using Event = void*;   // of take_event()

  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual int ordinal() const = 0;                  // as the process counts them
  virtual std::array<uint8_t, 16> uuid() const = 0;  // the same in all processes, and no other device's
  virtual int capability() const = 0;                // 10 * major + minor of what it can compute; 0: not known
  virtual int multiprocessors() const = 0;
  virtual const std::string& description() const = 0;  // for messages: "CUDA GPU 0 (NVIDIA H200)"

  // Ours on the device; does not wait for the framework's default stream, nor that for it.
  virtual Status make_stream(Stream* out) = 0;
  // Is the stream being captured into a graph? What is submitted there could not be carried out.
  virtual Status capturing(Stream stream, bool* out) = 0;

  // Events from a pool; an event that nobody has recorded counts as reached.
  virtual Status take_event(Event* out) = 0;
  virtual void give_back(Event event) = 0;  // when no wait for it will be asked for any more
  virtual Status record(Event event, Stream stream) = 0;
  virtual Status wait(Stream stream, Event event) = 0;  // what comes later on the stream waits for what was recorded
  virtual Status reached(Event event, bool* out) = 0;   // an error: the device has failed

  // In stream order; from and to: memory of the device or of pin().
  virtual Status copy(void* to, const void* from, size_t bytes, Stream stream) = 0;

  virtual Status zero(void* to, size_t bytes, Stream stream) = 0;

  // Memory of the device. Both may wait for all that it has to do: not while an operation waits for other ranks.
  virtual Status allocate(size_t bytes, void** out) = 0;
  virtual void free(void* memory) = 0;

  // Memory that other processes of this host use (CUDA IPC). A handle is bytes that mean something in another process alone, not
  // in the one that made it.
  using Handle = std::array<std::byte, 64>;
  virtual Status share(void* memory, Handle* out) = 0;  // all of what allocate() gave
  // Memory of another process, which does not free it before close(). Both may wait for all that the device has to do.
  virtual Status open(const Handle& handle, void** out) = 0;
  virtual void close(void* memory) = 0;

  // Memory of the host that is there already, whole pages: the device reads and writes it at `on_device` from now on. Both may wait for all
  // that the device has to do.
  virtual Status register_host(std::byte* memory, size_t bytes, std::byte** on_device) = 0;
  virtual void unregister_host(std::byte* memory) = 0;
  // Words of 32 bits there, in stream order: writes one, behind all that the stream has written before; or has what comes later on the
  // stream wait until it is `value` or beyond, by less than 2^31, so that a counter may begin again at 0. The host may write them, too.
  virtual Status write_word(std::byte* word, uint32_t value, Stream stream) = 0;
  virtual Status await_word(const std::byte* word, uint32_t value, Stream stream) = 0;

  // Memory of the host that the device reads and writes without the CPU's help. May wait for the device: at growth only, see PinnedPool.
  virtual Status pin(size_t bytes, std::byte** out) = 0;
  virtual void unpin(std::byte* memory) = 0;

  // Makes the kernels of core/kernels ready: none of them is loaded at its first launch. May wait for all that the device has to do, and
  // takes seconds where the driver has to compile them, so before anything waits for other ranks. Again: what it was the first time. An
  // error says why this driver and this device have none of them.
  virtual Status load_kernels() = 0;
  // In stream order: kernel number `kernel` of kernels::all(), after load_kernels(). The parameters are copied at the call.
  virtual Status launch(size_t kernel, const void* parameters, kernels::Geometry geometry, Stream stream) = 0;

  // While one exists the calling thread may use the device.
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

  // What a Turn does, for those who cannot hold one. `mode`: for leave().
  virtual Status enter(int* mode) = 0;
  virtual void leave(int mode) = 0;
};

}  // namespace hvd
