#include "node.h"

#include <algorithm>
#include <bit>
#include <cstdio>

namespace hvd::tensorflow {
namespace {

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* c) : c_(c) {}
  void integer(const char* name, int32_t* out) {
    get(name, [&] { tf().OpKernelConstruction_GetAttrInt32(c_, name, out, status_); });
  }
  // Read a number as a double. TensorFlow has no double attributes, so a second attribute can hold the double's bits.
  void number(const char* name, const char* bits_name, double* out) {
    float rounded = 1;
    int64_t bits = 0;
    get(name, [&] { tf().OpKernelConstruction_GetAttrFloat(c_, name, &rounded, status_); });
    get(bits_name, [&] { tf().OpKernelConstruction_GetAttrInt64(c_, bits_name, &bits, status_); });
    *out = bits ? std::bit_cast<double>(bits) : rounded;
  }
  bool flag(const char* name) {
    unsigned char value = 0;
    get(name, [&] { tf().OpKernelConstruction_GetAttrBool(c_, name, &value, status_); });
    return value != 0;
  }
  std::string text(const char* name) {
    std::string value;
    get(name, [&] {
      int32_t items = 0, bytes = 0;
      tf().OpKernelConstruction_GetAttrSize(c_, name, &items, &bytes, status_);
      if (!status_.ok() || bytes <= 0) return;
      value.resize(static_cast<size_t>(bytes));
      tf().OpKernelConstruction_GetAttrString(c_, name, value.data(), value.size(), status_);
    });
    return value;
  }
  // Report an error to TensorFlow, if there is one.
  void finish() {
    if (!status_.ok()) tf().OpKernelConstruction_Failure(c_, status_);
  }

 private:
  template <class Get>
  void get(const char* name, Get get) {
    if (status_.ok() && tf().OpKernelConstruction_HasAttr(c_, name, status_)) get();
  }
  TF_OpKernelConstruction* c_;
  TfStatus status_;
};

// Return a node's name without the numbers that TensorFlow adds when it inlines functions, as in
// "cond/then/_12/cond/y". The numbers count other nodes of the graph, so they can differ between ranks. Names remain
// unique without them.
std::string without_counts(const std::string& node) {
  std::string name;
  for (size_t begin = 0; begin <= node.size();) {
    const size_t end = std::min(node.find('/', begin), node.size());
    const std::string part = node.substr(begin, end - begin);
    const bool count = part.size() > 1 && part[0] == '_' && part.find_first_not_of("0123456789", 1) == std::string::npos;
    if (!count) name += name.empty() ? part : "/" + part;
    begin = end + 1;
  }
  return name;
}

// True if the node might be in a nested loop. The loops of tf.function have names like "while/body/...". The loops of
// TensorFlow 1 sessions do not appear in node names.
bool may_be_nested(const std::string& node) {
  const size_t first = node.find("/body/");
  return first == std::string::npos || node.find("/body/", first + 1) != std::string::npos;
}

}  // namespace

std::unique_ptr<Kernel> make_kernel(Kind kind, bool grouped, TF_OpKernelConstruction* c) {
  auto k = std::make_unique<Kernel>();
  k->kind = kind;
  k->grouped = grouped;
  const TF_StringView node = tf().OpKernelConstruction_GetName(c);
  k->node.assign(node.data, node.len);
  Attributes a(c);
  a.integer("process_set_id", &k->process_set);
  a.integer("reduce_op", &k->op);
  a.integer("root_rank", &k->root);
  a.integer("wire", &k->wire);
  a.number("prescale_factor", "prescale_bits", &k->prescale);
  a.number("postscale_factor", "postscale_bits", &k->postscale);
  k->name = a.text("tensor_name");
  const bool unnamed = a.flag("unnamed");
  // An eager operation is unnamed or has a name from the program, and its caller waits for it. An operation in a graph is named after its
  // node.
  k->awaited = unnamed || !k->name.empty();
  if (k->name.empty() && !unnamed) {
    const bool scoped = !a.flag("ignore_name_scope");
    k->nested = scoped && may_be_nested(k->node);
    const size_t scope = k->node.rfind('/');
    k->name = scoped || scope == std::string::npos ? without_counts(k->node) : k->node.substr(scope + 1);
  }
  a.finish();
  return k;
}

// Return a name that differs between iterations of a loop that are in flight at the same time (10 by default in TensorFlow). Names repeat
// after kWindow iterations, so that every step uses the same names.
std::string name_in_loop(const Kernel& k, TF_OpKernelContext* ctx) {
  constexpr int64_t kWindow = 32;
  if (k.name.empty() || !tf().GetIterId || !tf().GetFrameId) return k.name;
  const int64_t iteration = tf().GetIterId(ctx);
  const uint64_t frame = tf().GetFrameId(ctx);
  // Outside of loops, the name needs no suffix.
  if (iteration < 0 || frame == 0 || frame == UINT64_MAX) return k.name;
  char suffix[48];
  // Add TensorFlow's frame id only for loops that may be nested, whose names would otherwise not be unique. The id is a hash of the outer
  // loops' names and iterations. It can differ between ranks, because TensorFlow numbers the names when it inlines functions.
  const auto shown = static_cast<unsigned long long>(k.nested ? frame : 0);
  std::snprintf(suffix, sizeof suffix, "@%llx.%d", shown, static_cast<int>(iteration % kWindow));
  return k.name + suffix;
}

}  // namespace hvd::tensorflow
