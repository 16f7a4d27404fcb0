// Mapping of a reduction to NCCL: which NCCL reduction is used, and what scaling the caller must do. Pure.
//
// NCCL's arithmetic differs from the engine's. It multiplies by a scalar *of the data's type*, so a premultiplied sum
// by 1/3 in bfloat16 is off by 0.2%, always in the same direction; an average is such a sum. So in 16 bits and fewer it
// is used only if the factor is a power of two. Two differences cannot be avoided here: sums of 16-bit values are
// rounded at every hop, and min and max drop NaN where the host's keep it.
#pragma once
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "nccl/library.h"

namespace hvd::nccl {

// Element types known to the decision; more than NCCL or the engine has.
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

// x * factor / divisor, as in hvd::Scale (collectives/comm.h): in double for integers, in the accumulation type for
// floats.
struct Scaling {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

// All fields must be equal on all ranks of the communicator, also on a rank that has joined and has no tensor.
struct Question {
  Element element = Element::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int size = 1;                 // Number of ranks.
  int version = kOldestVersion;  // NCCL version.
  int capability = 90;          // Minimum compute capability of the ranks' devices, 90 for 9.0.
  bool scaled_afterwards = false;  // The caller runs a kernel after the reduction anyway, which scales at no extra cost.
};

// The decision: an NCCL operation, and the scaling left to the caller.
struct Reduction {
  std::string why_not;  // not empty: why NCCL cannot do it, starting with a lower-case letter
  Type type = Type::float32;
  Op op = Op::sum;
  bool premultiplied = false;  // Replaces `op`: multiply each value by `scalar`, then sum.
  double scalar = 1.0;         // Factor, exact in `type` or the nearest float32 or float64.
  Scaling before, after;       // Scaling that the caller applies to the inputs, and to the result.

  bool possible() const { return why_not.empty(); }
};
Reduction decide(const Question& question);

// Encode `value` as a scalar of `type` for red_op_create_premul_sum. bytes: room for 8. Values that do not fit 16 bits
// or fewer are rounded; decide() returns no such values.
void encode_scalar(Type type, double value, void* bytes);
size_t size_of(Type type);

}  // namespace hvd::nccl
