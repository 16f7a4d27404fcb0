// Maps a reduction to NCCL: which NCCL operation to use, and which scaling the caller must apply itself. The functions
// have no side effects.
//
// NCCL's arithmetic differs from the engine's. It multiplies by a scalar *of the data's type*. A premultiplied sum by
// 1/3 in bfloat16 is therefore off by 0.2%, always in the same direction, and NCCL computes averages this way. With 16
// bits or fewer, a premultiplied sum is therefore used only if the factor is a power of two. Two differences cannot be
// avoided: sums of 16-bit values are rounded at every hop, and min and max drop NaN where the host keeps it.
#pragma once
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "nccl/library.h"

namespace hvd::nccl {

// Element types that decide() accepts, including types that NCCL or the engine does not have.
enum class Element : uint8_t {
  int8,
  uint8,
  int16,
  uint16,
  int32,
  int64,
  float16,
  float32,
  float64,
  bfloat16,
  boolean,
  float8_e4m3,
  float8_e5m2,
  other
};
Element element_of(DType dtype);

// Scaling x * factor / divisor, as in hvd::Scale (collectives/comm.h). Integers are computed in double, and floats in
// their accumulation type.
struct Scaling {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

// Reduction to map to NCCL. All fields must be equal on all ranks of the communicator, even on a rank that has called join() and has no
// tensor.
struct Question {
  Element element = Element::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int size = 1;
  int version = kOldestVersion;
  // Minimum compute capability of the ranks' devices; 90 stands for 9.0.
  int capability = 90;
  // True if the caller runs a kernel after the reduction anyway, in which scaling costs nothing extra.
  bool scaled_afterwards = false;
};

// Result of decide(): an NCCL operation, and the scaling that the caller must apply itself.
struct Reduction {
  // Reason why NCCL cannot execute the reduction, starting with a lower-case letter. Empty if it can.
  std::string why_not;
  Type type = Type::float32;
  Op op = Op::sum;
  // True to multiply each value by `scalar` and then sum the products. `op` is then unused.
  bool premultiplied = false;
  // Multiplier of a premultiplied sum. For float32 and float64, it is rounded to the nearest value of the type. Other
  // types represent it exactly.
  double scalar = 1.0;
  // Scaling that the caller applies to the inputs (before) and to the result (after).
  Scaling before, after;

  bool possible() const { return why_not.empty(); }
};
Reduction decide(const Question& question);

// Encode `value` as a scalar of `type` for red_op_create_premul_sum, in up to 8 bytes. In a type of 16 bits or fewer, a value that does not
// fit exactly is rounded; decide() never returns such a value.
void encode_scalar(Type type, double value, void* bytes);
size_t size_of(Type type);

}  // namespace hvd::nccl
