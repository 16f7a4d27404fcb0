#include "call.h"

#include <cstring>
#include <utility>

#include "base/dtype.h"
#include "kernels.h"

namespace hvd::tensorflow {
namespace {

constexpr const char* kNames[] = {"allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "", "join", "question"};

std::atomic<const HvdFrontendApi*> attached{nullptr};

// Return the engine's code for a dtype, or -1 if the engine does not support it.
int dtype_code(TF_DataType type) {
  switch (type) {
    case kUint8: return static_cast<int>(DType::uint8);
    case kInt8: return static_cast<int>(DType::int8);
    case kUint16: return static_cast<int>(DType::uint16);
    case kInt16: return static_cast<int>(DType::int16);
    case kInt32: return static_cast<int>(DType::int32);
    case kInt64: return static_cast<int>(DType::int64);
    case kHalf: return static_cast<int>(DType::float16);
    case kFloat: return static_cast<int>(DType::float32);
    case kDouble: return static_cast<int>(DType::float64);
    case kBool: return static_cast<int>(DType::boolean);
    case kBfloat16: return static_cast<int>(DType::bfloat16);
    default: return -1;
  }
}

size_t item_size(int code) { return size_of(static_cast<DType>(code)); }

}  // namespace

void attach(const HvdFrontendApi* api) { attached.store(api); }
const HvdFrontendApi* engine() { return attached.load(); }

TF_Code tf_code(int32_t code) {
  switch (code) {
    case HVD_OK: return kOk;
    case HVD_INVALID_ARGUMENT: return kInvalidArgument;
    case HVD_MISMATCH: return kFailedPrecondition;
    case HVD_NOT_INITIALIZED: return kFailedPrecondition;
    default: return kUnknown;
  }
}

Call::~Call() {
  for (Member& m : members) {
    if (m.in) tf().DeleteTensor(m.in);
    if (m.out) tf().DeleteTensor(m.out);
  }
}

void Call::fail(TF_Code code, const std::string& why) {
  if (failed.exchange(true)) return;
  TfStatus status;
  const std::string& who = name.empty() ? kernel->node : name;
  const bool named = why.find("'" + who + "'") != std::string::npos;
  const std::string text = "Horovod " + (named ? "" : std::string(kNames[kernel->kind]) + " '" + who + "': ") + why;
  tf().SetStatus(status, code, text.c_str());
  tf().OpKernelContext_Failure(ctx, status);
}

void Call::fail(const TfStatus& status) {
  if (!failed.exchange(true)) tf().OpKernelContext_Failure(ctx, status);
}

bool take_input(Call* call, Member* m) {
  TfStatus status;
  tf().GetInput(call->ctx, m->index, &m->in, status);
  if (!status.ok()) return call->fail(status), false;
  m->dtype = dtype_code(tf().TensorType(m->in));
  const int n = tf().NumDims(m->in);
  m->shape.resize(static_cast<size_t>(n));
  for (int d = 0; d < n; ++d) m->shape[static_cast<size_t>(d)] = tf().Dim(m->in, d);
  // Reject scalars here only for reducescatter. For other kinds, leave it to the engine, which then reports the error on all ranks, even if
  // only one rank has passed a scalar.
  if (m->shape.empty() && call->kernel->kind == kReducescatter) {
    call->fail(kInvalidArgument, "the tensor must have at least one dimension, got a scalar");
    return false;
  }
  return true;
}

// Reuse the memory of an input for its output if nothing else refers to the input. This call drops its own reference, and TensorFlow keeps
// the input alive until the kernel is done.
bool forward(Call* call, Member* m, const void** in) {
  *in = tf().TensorData(m->in);
  tf().DeleteTensor(std::exchange(m->in, nullptr));
  TfStatus status;
  const int candidate[1] = {m->index};
  int forwarded = -1;
  m->out = tf().ForwardInputOrAllocateOutput(call->ctx, candidate, 1, m->index, m->shape.data(), static_cast<int>(m->shape.size()),
                                             &forwarded, status);
  if (!status.ok()) return call->fail(status), false;
  return true;
}

static TF_Tensor* allocate(Call* call, int index, TF_DataType type, size_t item, const std::vector<int64_t>& shape) {
  size_t bytes = item;
  for (int64_t d : shape) bytes *= static_cast<size_t>(d);
  TfStatus status;
  TF_Tensor* out = tf().AllocateOutput(call->ctx, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status);
  if (!status.ok()) call->fail(status);
  return status.ok() ? out : nullptr;
}

// Allocate this rank's rows. The first (rows mod n) ranks get one row more.
bool allocate_scattered(Call* call, Member* m) {
  const HvdFrontendApi* api = engine();
  const int32_t set = call->kernel->process_set;
  const int32_t n = api->ask(kFrontend, HVD_SET_SIZE, set), place = api->ask(kFrontend, HVD_SET_RANK, set);
  std::vector<int64_t> shape = m->shape;
  // If the process set is invalid, use the input's shape for the output. The engine will reject the operation anyway.
  if (n > 0 && place >= 0) shape[0] = shape[0] / n + (place < shape[0] % n ? 1 : 0);
  m->out = allocate(call, m->index, tf().TensorType(m->in), item_size(m->dtype), shape);
  return m->out != nullptr;
}

bool read_splits(Call* call) {
  TF_Tensor* tensor = nullptr;
  TfStatus status;
  tf().GetInput(call->ctx, 1, &tensor, status);
  if (!status.ok()) return call->fail(status), false;
  if (tf().NumDims(tensor) != 1) {
    call->fail(kInvalidArgument, "splits must have 1 dimension, got " + std::to_string(tf().NumDims(tensor)));
  } else {
    const auto* values = static_cast<const int32_t*>(tf().TensorData(tensor));
    call->splits.assign(values, values + tf().Dim(tensor, 0));
  }
  tf().DeleteTensor(tensor);
  return !call->failed;
}

// Copy an output of the engine to a new TensorFlow tensor.
static void keep_output(Member* m, const HvdResult& result) {
  Call* call = m->call;
  std::vector<int64_t> shape = m->shape;
  shape[0] = 0;
  for (size_t i = 0; i < result.sizes_count; ++i) shape[0] += result.sizes[i];
  TF_Tensor* out = allocate(call, m->index, tf().TensorType(m->in), item_size(m->dtype), shape);
  if (!out) return;
  if (result.output_bytes) std::memcpy(tf().TensorData(out), result.output, result.output_bytes);
  tf().DeleteTensor(out);
  if (call->kernel->kind != kAlltoall) return;
  TF_Tensor* splits = allocate(call, 1, kInt32, sizeof(int32_t), {static_cast<int64_t>(result.sizes_count)});
  if (!splits) return;
  for (size_t i = 0; i < result.sizes_count; ++i) static_cast<int32_t*>(tf().TensorData(splits))[i] = static_cast<int32_t>(result.sizes[i]);
  tf().DeleteTensor(splits);
}

void keep_scalar(Call* call, int32_t value) {
  TF_Tensor* out = allocate(call, 0, kInt32, sizeof value, {});
  if (!out) return;
  std::memcpy(tf().TensorData(out), &value, sizeof value);
  tf().DeleteTensor(out);
}

void keep(Member* m, const HvdResult& result) {
  Call* call = m->call;
  const Kind kind = call->kernel->kind;
  if (result.code != HVD_OK) {
    call->fail(tf_code(result.code), result.message);
  } else if (kind == kJoin) {
    keep_scalar(call, static_cast<int32_t>(result.sizes[0]));
  } else if (kind == kAllgather || kind == kAlltoall) {
    keep_output(m, result);
  }
}

}  // namespace hvd::tensorflow
