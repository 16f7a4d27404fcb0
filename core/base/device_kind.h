// Kind of memory that holds a tensor. The codes are shared with the Python package (DEVICE_* in _core) and used on the
// wire, so they must not change.
#pragma once
#include <cstdint>
#include <string_view>

namespace hvd {

// Code 2 was used for AMD GPUs and must not be reused (docs/adr/0035-no-hip.md).
enum class DeviceKind : uint8_t { host = 0, cuda = 1 };

constexpr std::string_view name_of(DeviceKind kind) {
  constexpr std::string_view names[2] = {"CPU", "CUDA GPU"};
  return names[static_cast<size_t>(kind)];
}

}  // namespace hvd
