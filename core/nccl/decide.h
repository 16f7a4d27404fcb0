// Which reduction NCCL carries out for one of ours, and what of the scaling is left to the caller: pure.
//
// NCCL's arithmetic is not ours. It multiplies by a scalar *of the data's type*, so a premultiplied sum by 1/3 in bfloat16 is wrong by
// 0.2%, always in the same direction; an average is such a sum. In 16 bits and below it is used only where the factor is a power of two.
// Sums of 16-bit values are rounded at every hop, and min and max drop NaN where the host's keep it: that cannot be helped here.
#pragma once
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "nccl/library.h"

namespace hvd::nccl {

// Element types of tensors that the decision knows; more than NCCL has, and more than the engine has.
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

// x * factor / divisor, as hvd::Scale has it (collectives/comm.h): computed in double for integers, in the accumulation type for floats.
struct Scaling {
  double factor = 1.0;
  int64_t divisor = 1;
  bool identity() const { return factor == 1.0 && divisor == 1; }
};

// Everything here has to be equal on all ranks of the communicator, also on one that has joined and has no tensor.
struct Question {
  Element element = Element::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1.0;
  double postscale = 1.0;
  int size = 1;                 // ranks
  int version = kOldestVersion;  // of NCCL
  int capability = 90;          // least compute capability of the ranks' devices, 90 for 9.0; RCCL: 90
  bool scaled_afterwards = false;  // the caller runs a kernel after the reduction anyway, which scales at no cost
};

struct Reduction {
  std::string why_not;  // not empty: NCCL cannot, and this says why, beginning with a lower-case letter
  Type type = Type::float32;
  Op op = Op::sum;
  bool premultiplied = false;  // in place of `op`: each value is multiplied by `scalar`, then they are summed
  double scalar = 1.0;         // exact in `type`, or the nearest of float32 and float64
  Scaling before, after;       // what the caller does to the inputs first, and to the result

  bool possible() const { return why_not.empty(); }
};
Reduction decide(const Question& question);

// Bytes of a scalar of `type` that is `value`, as NCCL takes it: to be given to red_op_create_premul_sum. bytes: room for 8. Values that
// 16 bits and fewer cannot hold are rounded; decide() gives none.
void encode_scalar(Type type, double value, void* bytes);
size_t size_of(Type type);

}  // namespace hvd::nccl
