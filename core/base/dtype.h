// Element types. The numeric codes are part of the contract with the Python package (horovod/common/dtypes.py) and of the wire.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hvd {

enum class DType : uint8_t {
  uint8 = 0,
  int8 = 1,
  uint16 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  boolean = 9,
  bfloat16 = 10,
};
inline constexpr int kDTypeCount = 11;

constexpr size_t size_of(DType d) {
  constexpr size_t bytes[kDTypeCount] = {1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2};
  return bytes[static_cast<size_t>(d)];
}

constexpr std::string_view name_of(DType d) {
  constexpr std::string_view names[kDTypeCount] = {"uint8",   "int8",    "uint16",  "int16", "int32",   "int64",
                                                   "float16", "float32", "float64", "bool",  "bfloat16"};
  return names[static_cast<size_t>(d)];
}

constexpr bool is_float(DType d) { return d == DType::float16 || d == DType::float32 || d == DType::float64 || d == DType::bfloat16; }
constexpr bool is_half(DType d) { return d == DType::float16 || d == DType::bfloat16; }

// What float32 values are while they travel between nodes (collectives/codec.h). The codes are part of the same contracts.
enum class WireFormat : uint8_t { none = 0, fp16 = 1, bf16 = 2, int8 = 3 };

constexpr std::string_view name_of(WireFormat f) {
  constexpr std::string_view names[4] = {"none", "fp16", "bf16", "int8"};
  return names[static_cast<size_t>(f)];
}

// Reduce operations as the engine runs them; Average is Sum with a divisor (see Scale).
// Codes are those of the public constants hvd.Average .. hvd.Product.
enum class ReduceOp : uint8_t { average = 0, sum = 1, adasum = 2, min = 3, max = 4, product = 5 };

constexpr std::string_view name_of(ReduceOp op) {
  constexpr std::string_view names[6] = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};
  return names[static_cast<size_t>(op)];
}

}  // namespace hvd
