// The kind of memory a tensor is in. The codes are part of the contract with the Python package (DEVICE_* in _core) and
// of the wire format.
#pragma once
#include <cstdint>
#include <string_view>

namespace hvd {

// 2 stood for AMD's GPUs and is not given again (docs/adr/0035-no-hip.md).
enum class DeviceKind : uint8_t { host = 0, cuda = 1 };

constexpr std::string_view name_of(DeviceKind kind) {
  constexpr std::string_view names[2] = {"CPU", "CUDA GPU"};
  return names[static_cast<size_t>(kind)];
}

}  // namespace hvd
