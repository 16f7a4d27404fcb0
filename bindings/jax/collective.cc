// src/horovod/_jax/_jax.so: collectives as a foreign function that XLA calls on the CPU (docs/adr/0012-jax.md). A call
// takes any number of tensors and submits all of them. It then waits, driving the engine on XLA's thread. This library
// declares XLA's interface itself (xla_ffi.h) and reaches the engine through a function table (frontend/api.h), so it
// is built without jaxlib and Python.
#include <array>
#include <atomic>
#include <string>
#include <utility>

#include "frontend/api.h"
#include "jax/call.h"
#include "jax/xla_ffi.h"

namespace hvd::jax {
namespace {

// Function table of the engine. It is set before the first call and never removed.
std::atomic<const HvdFrontendApi*> engine{nullptr};

// Seconds per wait. Waits are repeated until the operation finishes or the engine's own timeout expires.
constexpr double kSlice = 1.0;

int32_t error_code(int32_t code) {
  switch (code) {
    case HVD_INVALID_ARGUMENT: return xla::kInvalidArgument;
    case HVD_MISMATCH:
    case HVD_NOT_INITIALIZED: return xla::kFailedPrecondition;
    case HVD_INTERNAL: return xla::kInternal;
    // Most other codes are errors that end the job, such as HVD_SHUTDOWN, HVD_PEER_LOST and HVD_TIMEOUT.
    default: return xla::kUnknown;
  }
}

Failure failure_of(int32_t code, const HvdRequest& request, const char* message) {
  const std::string name = request.name;
  std::string text = message;
  if (!name.empty() && text.find(name) == std::string::npos) text = name + ": " + text;
  return {error_code(code), "horovod: " + text};
}

// Operations in flight. XLA provides their memory only for the duration of the call, so every operation must be done
// before the call ends.
class Operations {
 public:
  Operations(const HvdFrontendApi& api, const Call& call) : api_(api), call_(call) {}
  ~Operations() {
    for (const Started& s : started_) api_.release(s.work);
  }
  Operations(const Operations&) = delete;

  // Submit the remaining tensors even if one is rejected, because other ranks wait for them.
  void start() {
    const std::vector<HvdRequest>& requests = call_.requests();
    started_.reserve(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      const HvdRequest& request = requests[i];
      HvdWork* work = nullptr;
      std::array<char, 2048> message{};
      const int32_t code = api_.start(&request, &work, message.data(), message.size());
      if (code == HVD_OK) {
        started_.push_back({i, work});
      } else if (!failure_) {
        failure_ = failure_of(code, request, message.data());
      }
    }
  }
  Failure wait() {
    for (const Started& s : started_) {
      while (api_.wait(s.work, kSlice) == 0) {
      }
      HvdResult result;
      api_.result(s.work, &result);
      Failure failure =
          result.code == HVD_OK ? call_.take(s.index, result) : failure_of(result.code, call_.requests()[s.index], result.message);
      if (failure && !failure_) failure_ = std::move(failure);
    }
    return failure_ ? failure_ : call_.check_steps();
  }

 private:
  struct Started {
    size_t index;
    HvdWork* work;
  };
  const HvdFrontendApi& api_;
  const Call& call_;
  std::vector<Started> started_;
  Failure failure_;
};

// Reject processes with several devices. XLA would run the program once per device, but the process is only one rank.
Failure check_device(const xla::CallFrame& frame, int32_t devices) {
  if (devices == 1) return {};
  std::string which = "unknown to this jaxlib, one of " + std::to_string(devices);
  if (xla::has_device_ordinal(frame.api)) {
    xla::DeviceOrdinalArgs args{};
    args.struct_size = xla::size_up_to(args, args.device_ordinal);
    args.context = frame.context;
    // The result needs no check: this XLA function fails only for an invalid context.
    frame.api->device_ordinal_get(&args);
    if (args.device_ordinal == 0) return {};
    which = std::to_string(args.device_ordinal);
  }
  return {xla::kUnimplemented, "horovod: a collective must run on the first device of its process, got device " + which +
                                   "; a process is one rank (no pmap, no sharding over several devices of one process)"};
}

Failure run(const xla::CallFrame& frame) {
  const HvdFrontendApi* api = engine.load(std::memory_order_acquire);
  if (!api) return {xla::kFailedPrecondition, "horovod: the library was not attached to the engine"};
  Call call(*api);
  if (Failure failure = call.read(frame)) return failure;
  if (Failure failure = check_device(frame, call.devices())) return failure;
  Operations operations(*api, call);
  operations.start();
  return operations.wait();
}

// Answer XLA's request for the interface version, which it makes when a function is registered. The first version, 0.1,
// is sufficient.
bool answered_metadata(xla::CallFrame* frame) {
  xla::Extension* extension = frame->extensions;
  if (!extension || extension->type != xla::kMetadataExtension) return false;
  xla::Metadata* metadata = reinterpret_cast<xla::MetadataExtension*>(extension)->metadata;
  metadata->api_version.major = 0;
  metadata->api_version.minor = 1;
  metadata->traits = 0;
  return true;
}

}  // namespace
}  // namespace hvd::jax

#define HVD_EXPORT extern "C" __attribute__((visibility("default")))

// Set the function table of the engine. `address` is the result of horovod._core.frontend_api(). Return 0 on success,
// or 1 if the table has another version or is too small.
HVD_EXPORT int hvd_jax_attach(uintptr_t address) {
  const auto* api = reinterpret_cast<const HvdFrontendApi*>(address);
  if (!api || api->version != HVD_FRONTEND_API_VERSION || api->bytes < sizeof(HvdFrontendApi)) return 1;
  hvd::jax::engine.store(api, std::memory_order_release);
  return 0;
}

HVD_EXPORT hvd::xla::Error* hvd_jax_collective(hvd::xla::CallFrame* frame) {
  using namespace hvd;
  if (jax::answered_metadata(frame) || frame->stage != xla::kExecute) return nullptr;
  const jax::Failure failure = jax::run(*frame);
  if (!failure) return nullptr;
  xla::ErrorArgs args{};
  args.message = failure.message.c_str();
  args.code = failure.code;
  args.struct_size = xla::size_up_to(args, args.code);
  return frame->api->error_create(&args);
}
