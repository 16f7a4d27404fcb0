// Op definitions for TensorFlow, with attributes, inputs, outputs and shape inference. All ops are stateful, because
// TensorFlow would fold, merge or drop stateless ops.
#include "ops.h"

#include <vector>

namespace hvd::tensorflow {
namespace {

constexpr const char* kType = "T: {bool, uint8, int8, uint16, int16, int32, int64, half, bfloat16, float, double}";

class Shape {
 public:
  Shape() : it_(tf().NewShapeHandle()) {}
  explicit Shape(TF_ShapeHandle* it) : it_(it) {}
  ~Shape() { tf().DeleteShapeHandle(it_); }
  Shape(const Shape&) = delete;
  operator TF_ShapeHandle*() const { return it_; }

 private:
  TF_ShapeHandle* it_;
};

// Infer that output i has the shape of input i.
void same_shapes(TF_ShapeInferenceContext* c, TF_Status* status) {
  const int64_t n = tf().ShapeInferenceContextNumInputs(c);
  for (int i = 0; i < n && tf().GetCode(status) == kOk; ++i) {
    Shape shape;
    tf().ShapeInferenceContextGetInput(c, i, shape, status);
    if (tf().GetCode(status) == kOk) tf().ShapeInferenceContextSetOutput(c, i, shape, status);
  }
}

// Leave the first dimension of output i unknown, because it depends on the other ranks. The other dimensions are those
// of the input.
void other_rows_of(TF_ShapeInferenceContext* c, int i, TF_Status* status) {
  Shape in, rest, out;
  tf().ShapeInferenceContextGetInput(c, i, in, status);
  if (tf().GetCode(status) != kOk) return;
  // Leave the shape unknown if the input's shape is unknown.
  if (!tf().ShapeInferenceContextRankKnown(c, in) || tf().ShapeInferenceContextRank(c, in) < 1) return;
  // Dimensions of size -1 count as unknown.
  Shape rows(tf().ShapeInferenceContextVectorFromSize(c, SIZE_MAX));
  tf().ShapeInferenceContextSubshape(c, in, 1, INT64_MAX, rest, status);
  if (tf().GetCode(status) == kOk) tf().ShapeInferenceContextConcatenateShapes(c, rows, rest, out, status);
  if (tf().GetCode(status) == kOk) tf().ShapeInferenceContextSetOutput(c, i, out, status);
}

void other_rows(TF_ShapeInferenceContext* c, TF_Status* status) {
  tf().ShapeInferenceContextSetUnknownShape(c, status);
  const int64_t n = tf().ShapeInferenceContextNumInputs(c);
  for (int i = 0; i < n && tf().GetCode(status) == kOk; ++i) other_rows_of(c, i, status);
}

void alltoall_shapes(TF_ShapeInferenceContext* c, TF_Status* status) {
  tf().ShapeInferenceContextSetUnknownShape(c, status);
  if (tf().GetCode(status) == kOk) other_rows_of(c, 0, status);
  if (tf().GetCode(status) != kOk) return;
  Shape splits(tf().ShapeInferenceContextVectorFromSize(c, SIZE_MAX));
  tf().ShapeInferenceContextSetOutput(c, 1, splits, status);
}

void scalar(TF_ShapeInferenceContext* c, TF_Status* status) {
  Shape shape(tf().ShapeInferenceContextScalar(c));
  tf().ShapeInferenceContextSetOutput(c, 0, shape, status);
}

struct Definition {
  const char* name;
  std::vector<const char*> attributes, inputs, outputs;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
};

std::string define(const Definition& d, bool named) {
  TF_OpDefinitionBuilder* b = tf().NewOpDefinitionBuilder(d.name);
  for (const char* a : d.attributes) tf().OpDefinitionBuilderAddAttr(b, a);
  if (named) {
    for (const char* a :
         {"process_set_id: int = 0", "tensor_name: string = ''", "unnamed: bool = false", "ignore_name_scope: bool = false"}) {
      tf().OpDefinitionBuilderAddAttr(b, a);
    }
  }
  for (const char* i : d.inputs) tf().OpDefinitionBuilderAddInput(b, i);
  for (const char* o : d.outputs) tf().OpDefinitionBuilderAddOutput(b, o);
  tf().OpDefinitionBuilderSetIsStateful(b, true);
  tf().OpDefinitionBuilderSetShapeInferenceFunction(b, d.shapes);
  TfStatus status;
  tf().RegisterOpDefinition(b, status);
  return status.ok() ? "" : std::string(d.name) + ": " + status.message();
}

}  // namespace

std::string define_ops() {
  constexpr const char *pre = "prescale_factor: float = 1.0", *post = "postscale_factor: float = 1.0",
                       *op = "reduce_op: int",
                       // TensorFlow has no double attributes, so these hold the bits of a double. 0 means that the float attribute is
                       // exact.
                           *pre_bits = "prescale_bits: int = 0", *post_bits = "postscale_bits: int = 0", *many = "num_tensors: int >= 1",
                       *wire = "wire: int = 0", *root = "root_rank: int", *set = "process_set_id: int = 0";
  const std::vector<const char*> one_in{"tensor: T"}, one_out{"output: T"}, many_in{"tensors: num_tensors * T"},
      many_out{"outputs: num_tensors * T"};
  const std::vector<Definition> collectives{
      {"HorovodAllreduce", {kType, op, pre, post, pre_bits, post_bits, wire}, one_in, one_out, same_shapes},
      {"HorovodGroupedAllreduce", {kType, many, op, pre, post, pre_bits, post_bits, wire}, many_in, many_out, same_shapes},
      {"HorovodAllgather", {kType}, one_in, one_out, other_rows},
      {"HorovodGroupedAllgather", {kType, many}, many_in, many_out, other_rows},
      {"HorovodBroadcast", {kType, root}, one_in, one_out, same_shapes},
      {"HorovodAlltoall", {kType}, {"tensor: T", "splits: int32"}, {"output: T", "received_splits: int32"}, alltoall_shapes},
      {"HorovodReducescatter", {kType, op, pre, post, pre_bits, post_bits}, one_in, one_out, other_rows},
      {"HorovodGroupedReducescatter", {kType, many, op, pre, post, pre_bits, post_bits}, many_in, many_out, other_rows},
  };
  const std::vector<Definition> others{
      {"HorovodJoin", {}, {}, {"output: int32"}, scalar},
      {"HorovodProbe", {}, {}, {"output: int32"}, scalar},
      {"HorovodSize", {set}, {}, {"size: int32"}, scalar},
      {"HorovodProcessSetIncluded", {set}, {}, {"included: int32"}, scalar},
      {"HorovodRank", {}, {}, {"rank: int32"}, scalar},
      {"HorovodLocalRank", {}, {}, {"local_rank: int32"}, scalar},
      {"HorovodLocalSize", {}, {}, {"local_size: int32"}, scalar},
  };
  for (const auto* list : {&collectives, &others}) {
    for (const Definition& d : *list) {
      if (std::string wrong = define(d, list == &collectives); !wrong.empty()) return wrong;
    }
  }
  return "";
}

}  // namespace hvd::tensorflow
