// The kernels: what TensorFlow calls when it is a collective's turn. A kernel hands its tensors to the engine and returns; the engine's
// callback makes the outputs known and tells TensorFlow to go on. So any number of collectives are under way at once, in whatever order
// each rank happens to run them.
#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "done.h"

namespace hvd::tensorflow {
namespace {

constexpr int32_t kFace = 1;  // horovod/common/faces.py
enum Kind : int32_t { kAllreduce = 0, kAllgather = 1, kBroadcast = 2, kAlltoall = 3, kReducescatter = 4, kJoin = HVD_KIND_JOIN, kQuestion };
constexpr const char* kNames[] = {"allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "", "join", "question"};

std::atomic<const HvdFaceApi*> engine{nullptr};
std::atomic<int> blocking_mode{static_cast<int>(Blocking::unknown)};

int dtype_code(TF_DataType type) {
  switch (type) {
    case kUint8: return 0;
    case kInt8: return 1;
    case kUint16: return 2;
    case kInt16: return 3;
    case kInt32: return 4;
    case kInt64: return 5;
    case kHalf: return 6;
    case kFloat: return 7;
    case kDouble: return 8;
    case kBool: return 9;
    case kBfloat16: return 10;
    default: return -1;
  }
}

size_t item_size(int code) {
  constexpr size_t sizes[] = {1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2};
  return sizes[code];
}

TF_Code tf_code(int32_t code) {
  switch (code) {
    case HVD_OK: return kOk;
    case HVD_INVALID_ARGUMENT: return kInvalidArgument;
    case HVD_MISMATCH: return kFailedPrecondition;
    case HVD_NOT_INITIALIZED: return kFailedPrecondition;
    default: return kUnknown;
  }
}

// ---- one node of a graph ---------------------------------------------------------------------------------------------------
struct Kernel {
  Kind kind = kAllreduce;
  std::string node;  // the node's name
  std::string name;  // of the operation; "": matched by order
  bool grouped = false;
  bool nested = false;  // perhaps in a loop within a loop
  bool awaited = false;  // run eagerly: the caller's thread waits for it
  int32_t process_set = 0, op = 1, root = 0, wire = 0;
  double prescale = 1, postscale = 1;
};

class Attributes {
 public:
  explicit Attributes(TF_OpKernelConstruction* c) : c_(c) {}
  void integer(const char* name, int32_t* out) { get(name, [&] { tf().OpKernelConstruction_GetAttrInt32(c_, name, out, status_); }); }
  // A float attribute, or the double that another one has in bits: TensorFlow's attributes know no doubles.
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
  // Tells TensorFlow when something went wrong.
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

// A node's name without the parts that TensorFlow numbers when it inlines functions, as in "cond/then/_12/cond/y": they count what else
// is in the graph, which may differ between ranks, and no name is unique only by them.
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

// Can the node be in a loop within a loop? Loops of tf.function are "while/body/...". Those of sessions do not show, but their frames
// have names of the program's.
bool may_be_nested(const std::string& node) {
  const size_t first = node.find("/body/");
  return first == std::string::npos || node.find("/body/", first + 1) != std::string::npos;
}

template <Kind kKind, bool kGrouped>
void* create(TF_OpKernelConstruction* c) {
  auto* k = new Kernel;
  k->kind = kKind;
  k->grouped = kGrouped;
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
  k->awaited = unnamed || !k->name.empty();  // graphs name their operations by their nodes
  if (k->name.empty() && !unnamed) {
    const bool scoped = !a.flag("ignore_name_scope");
    k->nested = scoped && may_be_nested(k->node);
    const size_t scope = k->node.rfind('/');
    k->name = scoped || scope == std::string::npos ? without_counts(k->node) : k->node.substr(scope + 1);
  }
  a.finish();
  return k;
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Within a loop several iterations of a node can be under way at once. A window of them is told apart by name; its names return, so
// that steps look alike. TensorFlow runs 10 iterations at once unless told otherwise.
std::string name_in_loop(const Kernel& k, TF_OpKernelContext* ctx) {
  constexpr int64_t kWindow = 32;
  if (k.name.empty() || !tf().GetIterId || !tf().GetFrameId) return k.name;
  const int64_t iteration = tf().GetIterId(ctx);
  const uint64_t frame = tf().GetFrameId(ctx);
  if (iteration < 0 || frame == 0 || frame == UINT64_MAX) return k.name;  // in no loop
  char suffix[48];
  // The frame is a hash of the names of loops, with what inlining counts in them, and of the outer iterations. Only a loop within a loop
  // needs it.
  const auto shown = static_cast<unsigned long long>(k.nested ? frame : 0);
  std::snprintf(suffix, sizeof suffix, "@%llx.%d", shown, static_cast<int>(iteration % kWindow));
  return k.name + suffix;
}

// ---- one run of it ---------------------------------------------------------------------------------------------------------
struct Call;

struct Member {
  Call* call = nullptr;
  int index = 0;
  TF_Tensor* in = nullptr;
  TF_Tensor* out = nullptr;  // where its size is known beforehand
  std::vector<int64_t> shape;
  int dtype = 0;
  HvdWork* work = nullptr;  // blocking kernels only
};

struct Call {
  const Kernel* kernel = nullptr;
  TF_OpKernelContext* ctx = nullptr;
  Done done;
  std::string name;
  std::vector<Member> members;
  std::vector<int64_t> splits;
  std::atomic<int> left{0};
  std::atomic<bool> failed{false};

  ~Call() {
    for (Member& m : members) {
      if (m.in) tf().DeleteTensor(m.in);
      if (m.out) tf().DeleteTensor(m.out);
    }
  }
  // The first failure is what TensorFlow hears of.
  void fail(TF_Code code, const std::string& why) {
    if (failed.exchange(true)) return;
    TfStatus status;
    const std::string& who = name.empty() ? kernel->node : name;
    const bool named = why.find("'" + who + "'") != std::string::npos;
    const std::string text = "Horovod " + (named ? "" : std::string(kNames[kernel->kind]) + " '" + who + "': ") + why;
    tf().SetStatus(status, code, text.c_str());
    tf().OpKernelContext_Failure(ctx, status);
  }
  void fail(const TfStatus& status) {
    if (!failed.exchange(true)) tf().OpKernelContext_Failure(ctx, status);
  }
};

bool take_input(Call* call, Member* m) {
  TfStatus status;
  tf().GetInput(call->ctx, m->index, &m->in, status);
  if (!status.ok()) return call->fail(status), false;
  m->dtype = dtype_code(tf().TensorType(m->in));
  const int n = tf().NumDims(m->in);
  m->shape.resize(static_cast<size_t>(n));
  for (int d = 0; d < n; ++d) m->shape[static_cast<size_t>(d)] = tf().Dim(m->in, d);
  // What else is refused without dimensions, the engine refuses on all ranks: one may be alone in giving a scalar.
  if (m->shape.empty() && call->kernel->kind == kReducescatter) {
    call->fail(kInvalidArgument, "the tensor is a scalar; accepted are tensors with at least one dimension");
    return false;
  }
  return true;
}

// The engine reads what TensorFlow keeps alive until the kernel is done, so our reference can go; and if it was the only other one, the
// input's memory becomes the output's and nothing is copied.
bool forward(Call* call, Member* m, const void** in) {
  *in = tf().TensorData(m->in);
  tf().DeleteTensor(std::exchange(m->in, nullptr));
  TfStatus status;
  const int candidate[1] = {m->index};
  int forwarded = -1;
  m->out = tf().ForwardInputOrAllocateOutput(call->ctx, candidate, 1, m->index, m->shape.data(), static_cast<int>(m->shape.size()), &forwarded, status);
  if (!status.ok()) return call->fail(status), false;
  return true;
}

TF_Tensor* allocate(Call* call, int index, TF_DataType type, size_t item, const std::vector<int64_t>& shape) {
  size_t bytes = item;
  for (int64_t d : shape) bytes *= static_cast<size_t>(d);
  TfStatus status;
  TF_Tensor* out = tf().AllocateOutput(call->ctx, index, type, shape.data(), static_cast<int>(shape.size()), bytes, status);
  if (!status.ok()) call->fail(status);
  return status.ok() ? out : nullptr;
}

// Rows of this rank: the first (rows mod n) ranks get one more.
bool allocate_scattered(Call* call, Member* m) {
  const HvdFaceApi* api = engine.load();
  const int32_t set = call->kernel->process_set;
  const int32_t n = api->ask(kFace, HVD_SET_SIZE, set), place = api->ask(kFace, HVD_SET_RANK, set);
  std::vector<int64_t> shape = m->shape;
  if (n > 0 && place >= 0) shape[0] = shape[0] / n + (place < shape[0] % n ? 1 : 0);  // else the engine will refuse the operation
  m->out = allocate(call, m->index, tf().TensorType(m->in), item_size(m->dtype), shape);
  return m->out != nullptr;
}

bool read_splits(Call* call) {
  TF_Tensor* tensor = nullptr;
  TfStatus status;
  tf().GetInput(call->ctx, 1, &tensor, status);
  if (!status.ok()) return call->fail(status), false;
  if (tf().NumDims(tensor) != 1) {
    call->fail(kInvalidArgument, "splits has " + std::to_string(tf().NumDims(tensor)) + " dimensions, accepted is 1");
  } else {
    const auto* values = static_cast<const int32_t*>(tf().TensorData(tensor));
    call->splits.assign(values, values + tf().Dim(tensor, 0));
  }
  tf().DeleteTensor(tensor);
  return !call->failed;
}

// An engine's output becomes TensorFlow's.
void keep_output(Member* m, const HvdResult& result) {
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

// `call` is gone afterwards.
void one_less(Call* call) {
  if (call->left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  Done done = std::move(call->done);
  delete call;
  done();
}

void on_done(void* context, const HvdResult* result) {
  auto* m = static_cast<Member*>(context);
  keep(m, *result);
  one_less(m->call);
}

bool prepare(Call* call, Member* m, HvdRequest* q) {
  const Kernel& k = *call->kernel;
  *q = {};
  q->kind = k.kind;
  q->face = kFace;
  q->op = k.op;
  q->root = k.root;
  q->prescale = k.prescale;
  q->postscale = k.postscale;
  q->process_set = k.process_set;
  q->wire = k.wire;
  if (k.kind == kJoin) return true;
  if (k.kind == kAllreduce || k.kind == kBroadcast) {
    if (!forward(call, m, &q->in)) return false;
  } else {
    q->in = tf().TensorData(m->in);
    if (k.kind == kReducescatter && !allocate_scattered(call, m)) return false;
  }
  q->out = m->out ? tf().TensorData(m->out) : nullptr;
  q->shape = m->shape.data();
  q->dimensions = static_cast<int32_t>(m->shape.size());
  q->dtype = m->dtype;
  q->splits = call->splits.data();
  q->splits_count = static_cast<int32_t>(call->splits.size());
  return true;
}

// Everything that can be refused without the engine, for all members, before the first of them is announced: half a group would wait
// for the other half for ever.
bool prepare_all(Call* call, std::vector<HvdRequest>* requests) {
  const Kernel& k = *call->kernel;
  const int n = k.kind == kJoin ? 1 : k.grouped ? tf().NumInputs(call->ctx) : 1;
  call->members.resize(static_cast<size_t>(n));
  requests->resize(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) {
    Member& m = call->members[static_cast<size_t>(i)];
    m.call = call;
    m.index = i;
    if (k.kind != kJoin && !take_input(call, &m)) return false;
  }
  if (k.kind == kAlltoall && !read_splits(call)) return false;
  if (!engine.load()) {
    call->fail(kFailedPrecondition, "the engine is not attached; import horovod.tensorflow");
    return false;
  }
  for (int i = 0; i < n; ++i) {
    if (!prepare(call, &call->members[static_cast<size_t>(i)], &(*requests)[static_cast<size_t>(i)])) return false;
  }
  return true;
}

std::string member_name(const Call& call, size_t i) {
  if (!call.kernel->grouped || call.name.empty()) return call.name;
  return call.name + "_" + std::to_string(i + 1) + "of" + std::to_string(call.members.size());
}

std::atomic<uint64_t> unnamed_groups{0};

// Group members are matched by name or, without one, by order; the group itself needs a name that all ranks give it.
std::string group_name(const Call& call) {
  if (!call.kernel->grouped) return "";
  return call.name.empty() ? "group.noname." + std::to_string(unnamed_groups++) : call.name;
}

// Announces the members; `announce` is one of the engine's two ways. What it refuses is a failure of the call.
template <class Announce>
void announce_all(Call* call, std::vector<HvdRequest>& requests, Announce announce) {
  const std::string group = group_name(*call);
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string name = member_name(*call, i);
    requests[i].name = name.c_str();
    if (!group.empty()) {
      requests[i].group = group.c_str();
      requests[i].group_size = static_cast<int32_t>(requests.size());
    }
    char message[1024] = "";
    const int32_t code = announce(requests[i], &call->members[i], message, sizeof message);
    if (code != HVD_OK) call->fail(tf_code(code), message);
    if (code != HVD_OK) one_less(call);
  }
}

void run_blocking(Call* call, std::vector<HvdRequest>& requests) {
  const HvdFaceApi* api = engine.load();
  announce_all(call, requests, [api](const HvdRequest& q, Member* m, char* message, size_t bytes) { return api->start(&q, &m->work, message, bytes); });
  for (Member& m : call->members) {
    if (!m.work) continue;
    while (!api->wait(m.work, 1.0)) {
    }
    HvdResult result;
    api->result(m.work, &result);
    keep(&m, result);
    api->release(m.work);
  }
}

void warn_once(const char* why) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  std::fprintf(stderr,
               "horovod: %s; collectives block TensorFlow's threads while they run. Results are the same, but slower, and ranks have to run "
               "independent collectives in the same order.\n", why);
}

// `done` null: a kernel that is not asynchronous.
void compute(const Kernel& k, TF_OpKernelContext* ctx, TF_AsyncOpKernelDoneCallback* done) {
  const bool must_block = blocking() == Blocking::yes || !done || !Done::readable(done);
  const bool block = must_block || k.awaited;  // who waits anyway drives the engine itself, which saves two wake-ups
  if (must_block) {
    set_blocking(Blocking::yes);
    warn_once(done ? "this TensorFlow tells asynchronous kernels of their end in an unknown way" : "this TensorFlow has no asynchronous kernels");
  } else if (blocking() == Blocking::unknown) {
    set_blocking(Blocking::no);
  }
  auto call = std::make_unique<Call>();
  call->kernel = &k;
  call->ctx = ctx;
  call->name = name_in_loop(k, ctx);
  std::vector<HvdRequest> requests;
  if (!prepare_all(call.get(), &requests)) {
    call.reset();  // lets go of tensors while the context is there
    if (done) tf().RunAsyncOpKernelDoneCallback(done);
    return;
  }
  // One more than the members: the last of them may be done before all are announced.
  call->left = static_cast<int>(requests.size()) + 1;
  if (block) {
    run_blocking(call.get(), requests);
    call.reset();
    if (done) tf().RunAsyncOpKernelDoneCallback(done);
    return;
  }
  call->done = Done(done);
  const HvdFaceApi* api = engine.load();
  Call* shared = call.release();
  announce_all(shared, requests, [api](const HvdRequest& q, Member* m, char* message, size_t bytes) { return api->submit(&q, on_done, m, message, bytes); });
  one_less(shared);
}

void compute_async(void* kernel, TF_OpKernelContext* ctx, TF_AsyncOpKernelDoneCallback* done) { compute(*static_cast<Kernel*>(kernel), ctx, done); }
void compute_sync(void* kernel, TF_OpKernelContext* ctx) { compute(*static_cast<Kernel*>(kernel), ctx, nullptr); }

// ---- questions -------------------------------------------------------------------------------------------------------------
template <HvdQuestion kAsked>
void answer(void* kernel, TF_OpKernelContext* ctx) {
  Call call;
  call.kernel = static_cast<Kernel*>(kernel);
  call.ctx = ctx;
  const HvdFaceApi* api = engine.load();
  const int32_t set = call.kernel->process_set;
  const int32_t value = api ? api->ask(kFace, kAsked, set) : -1;
  if (value == -1 && kAsked != HVD_SET_INCLUDED) {  // that one's answer may be an error's number
    call.fail(kFailedPrecondition, "Horovod is not initialised; call hvd.init() first");
  } else if (kAsked == HVD_SET_SIZE && value < 0) {
    call.fail(kInvalidArgument, "process set " + std::to_string(set) + " is unknown or was removed");
  } else {
    keep_scalar(&call, value);
  }
}

// Runs a kernel of the asynchronous sort for the sake of blocking().
void probe(void* kernel, TF_OpKernelContext* ctx, TF_AsyncOpKernelDoneCallback* done) {
  Call call;
  call.kernel = static_cast<Kernel*>(kernel);
  call.ctx = ctx;
  if (blocking() == Blocking::unknown) set_blocking(done && Done::readable(done) ? Blocking::no : Blocking::yes);
  keep_scalar(&call, static_cast<int32_t>(blocking()));
  if (done) tf().RunAsyncOpKernelDoneCallback(done);
}
void probe_sync(void* kernel, TF_OpKernelContext* ctx) { probe(kernel, ctx, nullptr); }

// ---- registration ----------------------------------------------------------------------------------------------------------
using Create = void* (*)(TF_OpKernelConstruction*);

// On a GPU the tensors are handed over in host memory, to and from which TensorFlow copies them.
std::string add(const char* op, const char* device, TF_KernelBuilder* builder, const std::vector<const char*>& arguments) {
  if (std::strcmp(device, "GPU") == 0) {
    for (const char* argument : arguments) tf().KernelBuilder_HostMemory(builder, argument);
  }
  TfStatus status;
  tf().RegisterKernelBuilder(op, builder, status);
  return status.ok() ? "" : std::string(op) + " on " + device + ": " + status.message();
}

std::string add_collective(const char* op, Create make, const std::vector<const char*>& arguments, TF_ComputeAsync async = compute_async,
                           TF_Compute sync = compute_sync) {
  for (const char* device : {"CPU", "GPU"}) {
    TF_KernelBuilder* builder = tf().NewAsyncKernelBuilder && tf().RunAsyncOpKernelDoneCallback
                                    ? tf().NewAsyncKernelBuilder(op, device, make, async, destroy)
                                    : tf().NewKernelBuilder(op, device, make, sync, destroy);
    if (std::string wrong = add(op, device, builder, arguments); !wrong.empty()) return wrong;
  }
  return "";
}

std::string add_question(const char* op, TF_Compute compute, const char* output) {
  for (const char* device : {"CPU", "GPU"}) {
    TF_KernelBuilder* builder = tf().NewKernelBuilder(op, device, create<kQuestion, false>, compute, destroy);
    if (std::string wrong = add(op, device, builder, {output}); !wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace

std::string register_kernels() {
  const std::vector<const char*> one{"tensor", "output"}, many{"tensors", "outputs"};
  std::string wrong;
  auto all_right = [&wrong](std::string text) { return (wrong = std::move(text)).empty(); };
  all_right(add_collective("HorovodAllreduce", create<kAllreduce, false>, one)) &&
      all_right(add_collective("HorovodGroupedAllreduce", create<kAllreduce, true>, many)) &&
      all_right(add_collective("HorovodAllgather", create<kAllgather, false>, one)) &&
      all_right(add_collective("HorovodGroupedAllgather", create<kAllgather, true>, many)) &&
      all_right(add_collective("HorovodBroadcast", create<kBroadcast, false>, one)) &&
      all_right(add_collective("HorovodAlltoall", create<kAlltoall, false>, {"tensor", "splits", "output", "received_splits"})) &&
      all_right(add_collective("HorovodReducescatter", create<kReducescatter, false>, one)) &&
      all_right(add_collective("HorovodGroupedReducescatter", create<kReducescatter, true>, many)) &&
      all_right(add_collective("HorovodJoin", create<kJoin, false>, {"output"})) &&
      all_right(add_collective("HorovodProbe", create<kQuestion, false>, {"output"}, probe, probe_sync)) &&
      all_right(add_question("HorovodSize", answer<HVD_SET_SIZE>, "size")) &&
      all_right(add_question("HorovodProcessSetIncluded", answer<HVD_SET_INCLUDED>, "included")) &&
      all_right(add_question("HorovodRank", answer<HVD_RANK>, "rank")) &&
      all_right(add_question("HorovodLocalRank", answer<HVD_LOCAL_RANK>, "local_rank")) &&
      all_right(add_question("HorovodLocalSize", answer<HVD_LOCAL_SIZE>, "local_size"));
  return wrong;
}

void attach(const HvdFaceApi* api) { engine.store(api); }
Blocking blocking() { return static_cast<Blocking>(blocking_mode.load(std::memory_order_relaxed)); }
void set_blocking(Blocking blocking) { blocking_mode.store(static_cast<int>(blocking), std::memory_order_relaxed); }

}  // namespace hvd::tensorflow
