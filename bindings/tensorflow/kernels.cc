// Kernels that TensorFlow calls for collectives. A kernel submits its tensors to the engine and returns. The engine's
// callback sets the outputs and lets TensorFlow continue. Any number of collectives can be in flight at the same time,
// and each rank can start them in a different order.
#include "kernels.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "call.h"

namespace hvd::tensorflow {
namespace {

std::atomic<int> blocking_mode{static_cast<int>(Blocking::unknown)};

// ---- Submission of operations ---------------------------------------------------------------------------------------

// Decrement the number of unfinished tensors. `call` might be deleted afterwards.
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
  q->bytes = sizeof *q;
  q->kind = k.kind;
  q->frontend = kFrontend;
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

// Check all tensors and fill their requests before any is submitted. If a tensor failed afterwards, the other ranks would wait forever for
// the rest of its group.
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
  if (!engine()) {
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

// Return a name for the group that is equal on all ranks: the call's own name, or one from the engine for unnamed calls.
std::string group_name(const Call& call) {
  if (!call.kernel->grouped) return "";
  if (!call.name.empty()) return call.name;
  char name[64] = "";
  engine()->name_group(kFrontend, call.kernel->kind, call.kernel->process_set, name, sizeof name);
  return name;
}

// Submit all tensors of a call. `submit` is one of the engine's two submission functions. If it rejects a tensor, the call fails.
template <class Submit>
void submit_all(Call* call, std::vector<HvdRequest>& requests, Submit submit) {
  const std::string group = group_name(*call);
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::string name = member_name(*call, i);
    requests[i].name = name.c_str();
    if (!group.empty()) {
      requests[i].group = group.c_str();
      requests[i].group_size = static_cast<int32_t>(requests.size());
    }
    char message[1024] = "";
    const int32_t code = submit(requests[i], &call->members[i], message, sizeof message);
    if (code != HVD_OK) call->fail(tf_code(code), message);
    if (code != HVD_OK) one_less(call);
  }
}

void run_blocking(Call* call, std::vector<HvdRequest>& requests) {
  const HvdFrontendApi* api = engine();
  submit_all(call, requests,
             [api](const HvdRequest& q, Member* m, char* message, size_t bytes) { return api->start(&q, &m->work, message, bytes); });
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
               "horovod: %s; collectives block TensorFlow's threads while they run. Results are the same, but slower, and ranks must run "
               "independent collectives in the same order.\n",
               why);
}

// Execute a kernel. `done` is null for a synchronous kernel.
void compute(const Kernel& k, TF_OpKernelContext* ctx, TF_AsyncOpKernelDoneCallback* done) {
  const bool must_block = blocking() == Blocking::yes || !done || !Done::readable(done);
  // A waiting caller runs the engine's progress loop itself, which saves two wakeups.
  const bool block = must_block || k.awaited;
  if (must_block) {
    set_blocking(Blocking::yes);
    warn_once(done ? "this TensorFlow signals the end of asynchronous kernels in an unknown way"
                   : "this TensorFlow has no asynchronous kernels");
  } else if (blocking() == Blocking::unknown) {
    set_blocking(Blocking::no);
  }
  auto call = std::make_unique<Call>();
  call->kernel = &k;
  call->ctx = ctx;
  call->name = name_in_loop(k, ctx);
  std::vector<HvdRequest> requests;
  if (!prepare_all(call.get(), &requests)) {
    // Release the tensors while the kernel's context still exists.
    call.reset();
    if (done) tf().RunAsyncOpKernelDoneCallback(done);
    return;
  }
  // Start the count at one more than the number of tensors, so that it cannot reach zero while tensors are still being
  // submitted.
  call->left = static_cast<int>(requests.size()) + 1;
  if (block) {
    run_blocking(call.get(), requests);
    call.reset();
    if (done) tf().RunAsyncOpKernelDoneCallback(done);
    return;
  }
  call->done = Done(done);
  const HvdFrontendApi* api = engine();
  Call* shared = call.release();
  submit_all(shared, requests,
             [api](const HvdRequest& q, Member* m, char* message, size_t bytes) { return api->submit(&q, on_done, m, message, bytes); });
  one_less(shared);
}

void compute_async(void* kernel, TF_OpKernelContext* ctx, TF_AsyncOpKernelDoneCallback* done) {
  compute(*static_cast<Kernel*>(kernel), ctx, done);
}
void compute_sync(void* kernel, TF_OpKernelContext* ctx) { compute(*static_cast<Kernel*>(kernel), ctx, nullptr); }

// ---- Kernels for ranks and sizes ------------------------------------------------------------------------------------
template <HvdQuestion kAsked>
void answer(void* kernel, TF_OpKernelContext* ctx) {
  Call call;
  call.kernel = static_cast<Kernel*>(kernel);
  call.ctx = ctx;
  const HvdFrontendApi* api = engine();
  const int32_t set = call.kernel->process_set;
  const int32_t value = api ? api->ask(kFrontend, kAsked, set) : -1;
  // Treat -1 (Horovod is not initialized) as an error, except for HVD_SET_INCLUDED, for which -1 is a valid answer.
  if (value == -1 && kAsked != HVD_SET_INCLUDED) {
    call.fail(kFailedPrecondition, "Horovod has not been initialized in this process; call hvd.init() first");
  } else if (kAsked == HVD_SET_SIZE && value < 0) {
    call.fail(kInvalidArgument, "process set " + std::to_string(set) + " is unknown or was removed");
  } else {
    keep_scalar(&call, value);
  }
}

// Run an asynchronous kernel once, to find out whether kernels must block TensorFlow's threads (see blocking()).
void probe(void* kernel, TF_OpKernelContext* ctx, TF_AsyncOpKernelDoneCallback* done) {
  Call call;
  call.kernel = static_cast<Kernel*>(kernel);
  call.ctx = ctx;
  if (blocking() == Blocking::unknown) set_blocking(done && Done::readable(done) ? Blocking::no : Blocking::yes);
  keep_scalar(&call, static_cast<int32_t>(blocking()));
  if (done) tf().RunAsyncOpKernelDoneCallback(done);
}
void probe_sync(void* kernel, TF_OpKernelContext* ctx) { probe(kernel, ctx, nullptr); }

// ---- Registration of kernels ----------------------------------------------------------------------------------------
using Create = void* (*)(TF_OpKernelConstruction*);

template <Kind kKind, bool kGrouped>
void* create(TF_OpKernelConstruction* c) {
  return make_kernel(kKind, kGrouped, c).release();
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Request host memory for the tensors of GPU kernels too. TensorFlow copies the tensors.
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

Blocking blocking() { return static_cast<Blocking>(blocking_mode.load(std::memory_order_relaxed)); }
void set_blocking(Blocking blocking) { blocking_mode.store(static_cast<int>(blocking), std::memory_order_relaxed); }

}  // namespace hvd::tensorflow
