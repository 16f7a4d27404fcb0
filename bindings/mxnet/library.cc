// Functions that horovod.mxnet calls through ctypes.
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "c_api.h"
#include "call.h"
#include "frontend/api.h"

namespace hvd::mxnet {
namespace {

// Copy as much of the text as fits into the buffer.
int say(const std::string& text, char* to, size_t bytes) {
  if (bytes == 0) return 1;
  const size_t n = text.copy(to, bytes - 1);
  to[n] = 0;
  return 1;
}

}  // namespace
}  // namespace hvd::mxnet

#define HVD_EXPORT extern "C" __attribute__((visibility("default")))

using hvd::mxnet::Gathered;

// Connect this library to the engine and to MXNet. `address` is the HvdFrontendApi from horovod._core.frontend_api(),
// and `library` is MXNet's handle from dlopen. Return 0 on success. Otherwise, `message` receives the reason.
HVD_EXPORT int hvd_mxnet_attach(uintptr_t address, void* library, char* message, size_t bytes) {
  const auto* api = reinterpret_cast<const HvdFrontendApi*>(address);
  if (!api || api->version != HVD_FRONTEND_API_VERSION || api->bytes < sizeof(HvdFrontendApi)) {
    return hvd::mxnet::say("horovod._core has version " + std::to_string(api ? api->version : 0) +
                               " of the frontend interface, this library version " + std::to_string(HVD_FRONTEND_API_VERSION) +
                               "; they belong to different installations: reinstall horovod",
                           message, bytes);
  }
  const std::string missing = hvd::mxnet::find_c_api(library);
  if (!missing.empty()) return hvd::mxnet::say("MXNet's library has no function " + missing, message, bytes);
  hvd::mxnet::attach(api);
  return 0;
}

// Pass an operation to MXNet's engine and return. For allgather and alltoall, `gathered` receives an object that will
// hold the data. The data are available once MXNet reports the operation's placeholder array as ready. Release the
// object with hvd_mxnet_release(). Return 0 on success. On failure, `message` receives the reason.
HVD_EXPORT int hvd_mxnet_push(const hvd::mxnet::Order* order, void** gathered, char* message, size_t bytes) {
  try {
    auto call = std::make_unique<hvd::mxnet::Call>(*order);
    auto kept = call->gathered ? std::make_unique<std::shared_ptr<Gathered>>(call->gathered) : nullptr;
    hvd::mxnet::Call::push(std::move(call), order->priority);
    *gathered = kept.release();
    return 0;
  } catch (const std::exception& error) {
    return hvd::mxnet::say(error.what(), message, bytes);
  }
}

// Write the row count of each rank of the process set to `sizes`, up to `room` counts. Return the total number of
// counts.
HVD_EXPORT int hvd_mxnet_sizes(void* gathered, int member, int64_t* sizes, int room) {
  const auto& piece = (*static_cast<std::shared_ptr<Gathered>*>(gathered))->pieces[static_cast<size_t>(member)];
  const int count = static_cast<int>(piece.sizes.size());
  for (int i = 0; i < count && i < room; ++i) sizes[i] = piece.sizes[static_cast<size_t>(i)];
  return count;
}

// Move a tensor's received data to the memory of a new array of the same size. The array must be unused.
HVD_EXPORT int hvd_mxnet_take(void* gathered, int member, void* array, char* message, size_t bytes) {
  auto& piece = (*static_cast<std::shared_ptr<Gathered>*>(gathered))->pieces[static_cast<size_t>(member)];
  if (piece.bytes.empty()) return 0;
  void* data = nullptr;
  if (hvd::mxnet::mx().NDArrayGetData(array, &data)) return hvd::mxnet::say(hvd::mxnet::last_error(), message, bytes);
  std::memcpy(data, piece.bytes.data(), piece.bytes.size());
  piece.bytes = {};
  return 0;
}

HVD_EXPORT void hvd_mxnet_release(void* gathered) { delete static_cast<std::shared_ptr<Gathered>*>(gathered); }
