#include "jax/call.h"

#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>

#include "base/dtype.h"

namespace hvd::jax {
namespace {

Failure invalid(std::string message) { return {xla::kInvalidArgument, std::move(message)}; }

// Reads attributes by name and type. If an attribute is missing or has another type, the whole call is invalid.
class Reader {
 public:
  explicit Reader(const xla::Attributes& attributes) : attributes_(attributes) {}

  int32_t integer(std::string_view name) {
    const auto* scalar = find<xla::Scalar>(name, xla::kScalar);
    if (scalar && scalar->dtype == xla::kS32) return *static_cast<const int32_t*>(scalar->value);
    miss(name);
    return 0;
  }
  template <class T>
  std::span<const T> array(std::string_view name, int32_t dtype) {
    const auto* array = find<xla::Array>(name, xla::kArray);
    if (array && array->dtype == dtype) return {static_cast<const T*>(array->data), array->size};
    miss(name);
    return {};
  }
  std::string_view text(std::string_view name) {
    if (const auto* span = find<xla::Span>(name, xla::kString)) return {span->data, span->size};
    miss(name);
    return {};
  }
  const std::string& missing() const { return missing_; }

 private:
  template <class T>
  const T* find(std::string_view name, int32_t type) const {
    for (int64_t i = 0; i < attributes_.size; ++i) {
      const xla::Span& here = *attributes_.names[i];
      if (attributes_.types[i] == type && name == std::string_view(here.data, here.size))
        return static_cast<const T*>(attributes_.values[i]);
    }
    return nullptr;
  }
  void miss(std::string_view name) { missing_ += (missing_.empty() ? "" : ", ") + std::string(name); }

  const xla::Attributes& attributes_;
  std::string missing_;
};

// Return the engine's code for a dtype, or -1 if the engine does not support it.
int32_t engine_dtype(int32_t dtype) {
  switch (dtype) {
    case xla::kU8: return static_cast<int32_t>(DType::uint8);
    case xla::kS8: return static_cast<int32_t>(DType::int8);
    case xla::kU16: return static_cast<int32_t>(DType::uint16);
    case xla::kS16: return static_cast<int32_t>(DType::int16);
    case xla::kS32: return static_cast<int32_t>(DType::int32);
    case xla::kS64: return static_cast<int32_t>(DType::int64);
    case xla::kF16: return static_cast<int32_t>(DType::float16);
    case xla::kF32: return static_cast<int32_t>(DType::float32);
    case xla::kF64: return static_cast<int32_t>(DType::float64);
    case xla::kPred: return static_cast<int32_t>(DType::boolean);
    case xla::kBF16: return static_cast<int32_t>(DType::bfloat16);
    default: return -1;
  }
}

size_t item_size(int32_t dtype) {
  switch (dtype) {
    case xla::kU16:
    case xla::kS16:
    case xla::kF16:
    case xla::kBF16: return 2;
    case xla::kS32:
    case xla::kU32:
    case xla::kF32: return 4;
    case xla::kS64:
    case xla::kU64:
    case xla::kF64:
    case xla::kC64: return 8;
    case xla::kC128: return 16;
    default: return 1;
  }
}

size_t bytes_of(const xla::Buffer& buffer) {
  size_t items = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) items *= static_cast<size_t>(buffer.dims[i]);
  return items * item_size(buffer.dtype);
}

struct Count {
  int32_t job = 0;
  int32_t steps = 0;
};
std::mutex counts_mutex;
// Number of times that this rank has run each call in the current job, keyed by name. Guarded by counts_mutex.
std::map<std::string, Count, std::less<>> counts;

int32_t next_count(std::string_view name, int32_t job) {
  const std::lock_guard lock(counts_mutex);
  Count& count = counts.try_emplace(std::string(name)).first->second;
  if (count.job != job) count = {job, 0};
  return ++count.steps;
}

std::vector<std::string> split(std::string_view joined) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = joined.find('\n');
    parts.emplace_back(joined.substr(0, end));
    if (end == std::string_view::npos) return parts;
    joined.remove_prefix(end + 1);
  }
}

}  // namespace

Failure Call::read(const xla::CallFrame& frame) {
  Reader attributes(frame.attributes);
  const auto numbers = attributes.array<int32_t>("numbers", xla::kS32);
  const auto scales = attributes.array<double>("scales", xla::kF64);
  devices_ = attributes.integer("devices");
  names_ = split(attributes.text("names"));
  groups_ = split(attributes.text("groups"));
  steps_ = attributes.text("steps");
  if (!attributes.missing().empty()) return invalid("horovod: the call lacks the attributes " + attributes.missing());
  const size_t count = names_.size();
  if (groups_.size() != count || numbers.size() != count * kNumbers || scales.size() != count * 2 ||
      static_cast<size_t>(frame.arguments.size) < count || static_cast<size_t>(frame.results.size) != count + 1) {
    return invalid("horovod: the call has " + std::to_string(count) + " names, but " + std::to_string(groups_.size()) + " groups, " +
                   std::to_string(numbers.size()) + " numbers, " + std::to_string(frame.arguments.size) + " arguments and " +
                   std::to_string(frame.results.size) + " results");
  }
  // Number of times that this rank has run the current branch (lax.cond) of the JAX program. JAX passes the number in an additional
  // argument. It is 0 outside of branches.
  int32_t token = 0;
  if (static_cast<size_t>(frame.arguments.size) > count) std::memcpy(&token, frame.arguments.buffers[count]->data, sizeof token);
  std::memcpy(frame.results.buffers[count]->data, &token, sizeof token);
  count_ = {token, -int64_t{token}};
  // Count the tensors of each group in this call. XLA can merge groups of several frontends into one call.
  std::map<std::pair<int32_t, std::string_view>, int32_t> members;
  for (size_t i = 0; i < count; ++i) ++members[{numbers[i * kNumbers + 1], groups_[i]}];
  requests_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t* const n = &numbers[i * kNumbers];
    HvdRequest r{};
    r.bytes = sizeof r;
    r.kind = n[0];
    r.frontend = n[1];
    r.op = n[2];
    r.root = n[3];
    r.process_set = n[4];
    r.wire = n[5];
    r.prescale = scales[i * 2];
    r.postscale = scales[i * 2 + 1];
    r.name = names_[i].c_str();
    r.group = groups_[i].c_str();
    r.group_size = groups_[i].empty() ? 0 : members[{r.frontend, groups_[i]}];
    if (Failure failure = add(r, *frame.arguments.buffers[i], *frame.results.buffers[i])) return failure;
  }
  if (!steps_.empty() && !requests_.empty()) add_steps(requests_.front());
  return {};
}

void Call::add_steps(const HvdRequest& like) {
  HvdRequest r{};
  r.bytes = sizeof r;
  r.kind = HVD_KIND_ALLREDUCE;
  r.frontend = like.frontend;
  r.op = HVD_OP_MAX;
  r.process_set = like.process_set;
  r.prescale = r.postscale = 1.0;
  r.name = steps_.c_str();
  r.group = "";
  r.in = count_.data();
  r.out = most_.data();
  r.shape = &pair_;
  r.dimensions = 1;
  r.dtype = static_cast<int32_t>(DType::int64);
  requests_.push_back(r);
  places_.push_back(nullptr);
}

Failure Call::check_steps() const {
  if (steps_.empty() || most_[0] == -most_[1]) return {};
  return {xla::kFailedPrecondition,
          "horovod: " + steps_ + ": ranks exchange gradients of different steps, from " + std::to_string(-most_[1]) + " to " +
              std::to_string(most_[0]) + ", this rank of step " + std::to_string(count_[0]) +
              "; a branch around DistributedOptimizer was decided from local values (as by apply_if_finite): put the transformation "
              "that decides inside DistributedOptimizer"};
}

Failure Call::add(HvdRequest r, const xla::Buffer& in, const xla::Buffer& out) {
  r.in = in.data;
  r.out = out.data;
  r.shape = in.dims;
  r.dimensions = static_cast<int32_t>(in.rank);
  r.dtype = engine_dtype(in.dtype);
  if (r.kind == kCount) {
    const int32_t count = next_count(r.name, api_.ask(r.frontend, HVD_JOB, 0));
    std::memcpy(out.data, &count, sizeof count);
    return {};
  }
  if (r.kind == kPassOn || r.kind == HVD_KIND_BARRIER) {
    if (in.data != out.data) std::memcpy(out.data, in.data, bytes_of(in));
    if (r.kind == kPassOn) return {};
    r.in = r.out = nullptr;
    r.dimensions = 0;
    r.dtype = static_cast<int32_t>(DType::uint8);
  }
  if (r.dtype < 0) {
    return invalid("horovod: tensor '" + std::string(r.name) + "' has an unsupported data type (XLA's number " + std::to_string(in.dtype) +
                   ")");
  }
  requests_.push_back(r);
  places_.push_back(&out);
  return {};
}

Failure Call::take(size_t i, const HvdResult& result) const {
  const HvdRequest& r = requests_[i];
  if (r.kind != HVD_KIND_ALLGATHER && r.kind != HVD_KIND_ALLTOALL) return {};
  const xla::Buffer& out = *places_[i];
  // Check that the shapes of all ranks are equal, because the result's shape was fixed at compilation from this rank's
  // input.
  bool alike = result.output_bytes == bytes_of(out);
  for (size_t k = 1; k < result.sizes_count && r.root >= 0; ++k) alike = alike && result.sizes[k] == result.sizes[0];
  if (!alike) {
    std::string rows;
    for (size_t k = 0; k < result.sizes_count; ++k) rows += (k ? ", " : "") + std::to_string(result.sizes[k]);
    return invalid("horovod: " + std::string(r.name) + ": ranks must send equal numbers of rows within a compiled program, got " + rows +
                   "; outside of one, the numbers may differ");
  }
  if (result.output_bytes > 0) std::memcpy(out.data, result.output, result.output_bytes);
  return {};
}

}  // namespace hvd::jax
