#include "jax/call.h"

#include <string_view>
#include <unordered_map>

#include "base/dtype.h"

namespace hvd::jax {
namespace {

Failure invalid(std::string message) { return {xla::kInvalidArgument, std::move(message)}; }

// Attributes by name and type; what is missing or of another type makes the whole call invalid.
class Reader {
 public:
  explicit Reader(const xla::Attributes& attributes) : attributes_(attributes) {}

  int32_t integer(std::string_view name) {
    const auto* scalar = find<xla::Scalar>(name, xla::kScalar);
    if (scalar && scalar->dtype == xla::kS32) return *static_cast<const int32_t*>(scalar->value);
    miss(name);
    return 0;
  }
  double real(std::string_view name) {
    const auto* scalar = find<xla::Scalar>(name, xla::kScalar);
    if (scalar && scalar->dtype == xla::kF64) return *static_cast<const double*>(scalar->value);
    miss(name);
    return 0;
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

// -1: the engine has no such type.
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
  const auto count = static_cast<size_t>(frame.arguments.size);
  Reader attributes(frame.attributes);
  HvdRequest common{};
  common.bytes = sizeof common;
  common.kind = attributes.integer("kind");
  common.face = attributes.integer("face");
  common.op = attributes.integer("op");
  common.root = attributes.integer("root");
  common.process_set = attributes.integer("process_set");
  common.wire = attributes.integer("wire");
  common.prescale = attributes.real("prescale");
  common.postscale = attributes.real("postscale");
  devices_ = attributes.integer("devices");
  names_ = split(attributes.text("names"));
  groups_ = split(attributes.text("groups"));
  if (!attributes.missing().empty()) return invalid("horovod: the call lacks the attributes " + attributes.missing());
  if (names_.size() != count || groups_.size() != count || static_cast<size_t>(frame.results.size) != count) {
    return invalid("horovod: the call has " + std::to_string(count) + " tensors, but " + std::to_string(names_.size()) + " names, " +
                   std::to_string(groups_.size()) + " groups and " + std::to_string(frame.results.size) + " results");
  }
  std::unordered_map<std::string_view, int32_t> members;
  for (const std::string& group : groups_) ++members[group];
  requests_.assign(count, common);
  for (size_t i = 0; i < count; ++i) {
    const xla::Buffer& in = *frame.arguments.buffers[i];
    HvdRequest& r = requests_[i];
    r.dtype = engine_dtype(in.dtype);
    if (r.dtype < 0)
      return invalid("horovod: tensor '" + names_[i] + "' has a data type that cannot travel (XLA's number " + std::to_string(in.dtype) +
                     ")");
    r.name = names_[i].c_str();
    r.in = in.data;
    r.out = frame.results.buffers[i]->data;
    r.shape = in.dims;
    r.dimensions = static_cast<int32_t>(in.rank);
    r.group = groups_[i].c_str();
    r.group_size = groups_[i].empty() ? 0 : members[groups_[i]];
  }
  return {};
}

}  // namespace hvd::jax
