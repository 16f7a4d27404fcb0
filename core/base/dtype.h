// Element types of tensors. The codes are shared with the Python package and used on the wire, so they must not change
// (dtype_table.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/dtype_table.h"
#include "base/reduce_op_table.h"

namespace hvd {

#define HVD_NAME(cpp, name, bytes, floating) cpp,
enum class DType : uint8_t { HVD_DTYPES(HVD_NAME) };
#undef HVD_NAME

namespace dtype_table {
struct Row {
  std::string_view name;
  size_t bytes;
  bool floating;
};
#define HVD_ROW(cpp, name, bytes, floating) Row{name, bytes, floating},
inline constexpr Row kRows[] = {HVD_DTYPES(HVD_ROW)};
#undef HVD_ROW
}  // namespace dtype_table

inline constexpr int kDTypeCount = static_cast<int>(sizeof dtype_table::kRows / sizeof *dtype_table::kRows);

constexpr size_t size_of(DType d) { return dtype_table::kRows[static_cast<size_t>(d)].bytes; }
constexpr std::string_view name_of(DType d) { return dtype_table::kRows[static_cast<size_t>(d)].name; }
constexpr bool is_float(DType d) { return dtype_table::kRows[static_cast<size_t>(d)].floating; }
constexpr bool is_half(DType d) { return d == DType::float16 || d == DType::bfloat16; }

// Encoding of float32 values sent between nodes (collectives/codec.h). The codes are used on the wire, so they must not
// change.
enum class WireFormat : uint8_t { none = 0, fp16 = 1, bf16 = 2, int8 = 3 };

constexpr std::string_view name_of(WireFormat f) {
  constexpr std::string_view names[4] = {"none", "fp16", "bf16", "int8"};
  return names[static_cast<size_t>(f)];
}

// Reduction operations. An average is a sum with a divisor (see Scale). The codes equal the public constants
// hvd.Average to hvd.Product (reduce_op_table.h).
#define HVD_NAME(cpp, name) cpp,
enum class ReduceOp : uint8_t { HVD_REDUCE_OPS(HVD_NAME) };
#undef HVD_NAME

#define HVD_TEXT(cpp, name) name,
inline constexpr std::string_view kReduceOpNames[] = {HVD_REDUCE_OPS(HVD_TEXT)};
#undef HVD_TEXT
inline constexpr ReduceOp kLastReduceOp = static_cast<ReduceOp>(sizeof kReduceOpNames / sizeof *kReduceOpNames - 1);

constexpr std::string_view name_of(ReduceOp op) { return kReduceOpNames[static_cast<size_t>(op)]; }

}  // namespace hvd
