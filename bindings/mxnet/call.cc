#include "call.h"

#include <algorithm>
#include <utility>

#include "turns.h"

namespace hvd::mxnet {
namespace {

constexpr int kAllgather = 1, kAlltoall = 3;
constexpr const char* kNames[] = {"allreduce", "allgather", "broadcast", "alltoall", "reducescatter"};

std::atomic<const HvdFrontendApi*> attached{nullptr};

// Return the name of the Python exception for an error code (src/horovod/mxnet/_library.py). MXNet derives the exception type from the word
// before the first colon of a message.
const char* error_class(int32_t code) {
  switch (code) {
    case HVD_INVALID_ARGUMENT:
    case HVD_NOT_INITIALIZED: return "HorovodArgumentError";
    default: return "HorovodInternalError";
  }
}

void check(int failed) {
  if (failed) throw std::runtime_error(last_error());
}

std::vector<int64_t> shape_of(Handle array) {
  int dimensions = 0;
  const int* shape = nullptr;
  check(mx().NDArrayGetShapeEx(array, &dimensions, &shape));
  return std::vector<int64_t>(shape, shape + std::max(dimensions, 0));
}

// Add an array, unless the list already contains one that shares its memory. MXNet's engine requires that no variable
// is listed twice.
void add(std::vector<Handle>* arrays, Handle array) {
  for (Handle other : *arrays) {
    if (chunk_of(other) == chunk_of(array)) return;
  }
  arrays->push_back(array);
}

void run_call(void*, void* on_complete, void* call) { static_cast<Call*>(call)->run(*static_cast<const OnComplete*>(on_complete)); }
void delete_call(void* call) { delete static_cast<Call*>(call); }

void on_done(void* context, const HvdResult* result) {
  auto* member = static_cast<Member*>(context);
  member->call->keep(member, *result);
  member->call->one_less();
}

}  // namespace

void attach(const HvdFrontendApi* api) { attached.store(api); }
const HvdFrontendApi* engine() { return attached.load(); }

Call::Call(const Order& order) : name(order.name), turn(std::to_string(order.process_set) + "/" + order.name), grouped(order.grouped != 0) {
  common.bytes = sizeof common;
  common.kind = order.kind;
  common.frontend = kFrontend;
  common.op = order.op;
  common.root = order.root;
  common.prescale = order.prescale;
  common.postscale = order.postscale;
  common.process_set = order.process_set;
  common.wire = order.wire;
  splits.assign(order.splits, order.splits + order.splits_count);
  const bool gathers = order.kind == kAllgather || order.kind == kAlltoall;
  members.resize(static_cast<size_t>(order.count));
  for (size_t i = 0; i < members.size(); ++i) {
    Member& m = members[i];
    m.call = this;
    m.name = order.names[i];
    m.dtype = order.dtypes[i];
    m.shape = shape_of(order.in[i]);
    if (!m.in.refer(order.in[i])) check(-1);
    if (!gathers && order.out[i] != order.in[i] && !m.out.refer(order.out[i])) check(-1);
  }
  if (!gathers) return;
  if (!result.refer(order.out[0])) check(-1);
  gathered = std::make_shared<Gathered>();
  gathered->pieces.resize(members.size());
}

void Call::push(std::unique_ptr<Call> call, int32_t priority) {
  std::vector<Handle> read, written;
  for (const Member& m : call->members) {
    if (!call->result) add(&written, m.out ? m.out.handle() : m.in.handle());
  }
  if (call->result) add(&written, call->result.handle());
  for (const Member& m : call->members) {
    const auto same = [&m](Handle other) { return chunk_of(other) == chunk_of(m.in.handle()); };
    if (std::any_of(written.begin(), written.end(), same)) continue;
    // Let MXNet's engine convert the layout of a read-only array, because other operations can read the array at the same time. Arrays that
    // this operation also writes are converted later, once they are ready.
    if (mx().reorder_later) mx().reorder_later(m.in.handle());
    add(&read, m.in.handle());
  }
  Device cpu;
  int property = kPrioritized;
  turns().enter(call->turn, call.get());
  Call* given = call.release();
  const std::string title = std::string("horovod_") + kNames[given->common.kind];
  // Do not delete the Call object if this fails, because MXNet's engine has already deleted it with delete_call().
  check(mx().EnginePushAsyncND(run_call, given, delete_call, &cpu, read.data(), static_cast<int>(read.size()), written.data(),
                               static_cast<int>(written.size()), &property, priority, title.c_str(), false));
}

Call::~Call() {
  // Start the next operation with the same name. This destructor also runs if MXNet discards the call without executing
  // it because an array has an error.
  if (Call* next = turns().leave(turn, this)) next->start();
}

void Call::run(const OnComplete& done) {
  done_ = done;
  requests_.resize(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    if (!fill(&members[i], &requests_[i])) return finish();
  }
  if (turns().ready(turn, this)) start();
}

bool Call::fill(Member* m, HvdRequest* q) {
  *q = common;
  q->name = m->name.c_str();
  q->shape = m->shape.data();
  q->dimensions = static_cast<int32_t>(m->shape.size());
  q->dtype = m->dtype;
  q->splits = splits.data();
  q->splits_count = static_cast<int32_t>(splits.size());
  if (grouped) {
    q->group = name.c_str();
    q->group_size = static_cast<int32_t>(members.size());
  }
  void* const chunk = chunk_of(m->in.handle());
  // Convert the array's memory to the default layout here. MXNet's own conversion would be queued behind this
  // operation, which would then wait for it forever.
  if (mx().is_reordered && mx().is_reordered(chunk)) {
    if (!m->out && !result) {
      mx().reorder(chunk);
    } else {
      fail(HVD_INTERNAL, "MXNet did not convert an array from oneDNN's layout");
      return false;
    }
  }
  void *in = nullptr, *out = nullptr;
  if (mx().NDArrayGetData(m->in.handle(), &in) || (m->out && mx().NDArrayGetData(m->out.handle(), &out))) {
    fail(HVD_INTERNAL, last_error());
    return false;
  }
  q->in = in;
  q->out = result ? nullptr : m->out ? out : in;
  return true;
}

void Call::start() {
  const HvdFrontendApi* api = engine();
  // Start the count at one more than the number of tensors, so that it cannot reach zero while tensors are still being
  // submitted.
  left_ = static_cast<int>(members.size()) + 1;
  for (size_t i = 0; i < members.size(); ++i) {
    char message[2048] = "";
    const int32_t code = api->submit(&requests_[i], on_done, &members[i], message, sizeof message);
    if (code == HVD_OK) continue;
    fail(code, message);
    one_less();
  }
  one_less();
}

void Call::keep(Member* m, const HvdResult& r) {
  if (r.code != HVD_OK) return fail(r.code, r.message);
  if (!gathered) return;
  Gathered::Piece& piece = gathered->pieces[static_cast<size_t>(m - members.data())];
  const auto* bytes = static_cast<const std::byte*>(r.output);
  piece.bytes.assign(bytes, bytes + r.output_bytes);
  piece.sizes.assign(r.sizes, r.sizes + r.sizes_count);
}

void Call::one_less() {
  if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) finish();
}

void Call::fail(int32_t code, const std::string& why) {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  const bool named = why.find("'" + name + "'") != std::string::npos;
  failure_ = std::string(error_class(code)) + ": Horovod " + (named ? "" : std::string(kNames[common.kind]) + " '" + name + "': ") + why;
}

// MXNet owns the call and deletes it once notified, so do not use it afterwards.
void Call::finish() {
  const OnComplete done = done_;
  const std::string failure = failure_;
  Call* next = turns().leave(turn, this);
  if (failure.empty()) {
    done(nullptr);
  } else {
    const std::runtime_error error(failure);
    done(&error);
  }
  if (next) next->start();
}

}  // namespace hvd::mxnet
