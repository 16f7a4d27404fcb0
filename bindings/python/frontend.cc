// C function table for native libraries of other frontends (bindings/frontend/api.h), implemented with the current
// engine.
#include "frontend.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <mutex>

#include "frontend/api.h"

struct HvdWork {
  std::shared_ptr<hvd::Engine> engine;
  hvd::OperationPtr op;
};

namespace hvd::python {
namespace {

static_assert(HVD_KIND_JOIN == static_cast<int>(Kind::join) && HVD_KIND_BARRIER == static_cast<int>(Kind::barrier));
static_assert(HVD_KIND_ALLGATHER == static_cast<int>(Kind::allgather) && HVD_KIND_ALLTOALL == static_cast<int>(Kind::alltoall));
static_assert(HVD_INTERNAL == static_cast<int>(Code::internal) && HVD_SHUTDOWN == static_cast<int>(Code::shutdown));

// State of the function table. It is never destroyed, because threads of other libraries can use it during exit.
struct Current {
  std::mutex mutex;
  std::shared_ptr<Engine> engine;
  // Ranks and sizes that ask() reports, indexed by HvdQuestion.
  std::array<int, 4> places{};
  // Number of engines created in this process.
  int32_t jobs = 0;
  enum class Membership : uint8_t { never, in, left };
  std::array<Membership, 256> frontends{};
  bool forked = false;
};
Current& current() {
  static Current* const it = new Current;
  return *it;
}
// Return the running engine, or null if this frontend has not joined the job or has left it.
std::shared_ptr<Engine> running(int32_t frontend) {
  std::lock_guard lock(current().mutex);
  const bool in = frontend >= 0 && frontend <= UINT8_MAX && current().frontends[static_cast<size_t>(frontend)] == Current::Membership::in;
  return in ? current().engine : nullptr;
}

// Copy as much of the text as fits into the buffer.
void copy(const std::string& text, char* to, size_t bytes) {
  if (bytes == 0) return;
  const size_t n = std::min(bytes - 1, text.size());
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

int32_t refuse(int32_t code, const std::string& why, char* message, size_t bytes) {
  copy(why, message, bytes);
  return code;
}
int32_t refuse(const Status& status, char* message, size_t bytes) {
  return status.ok() ? HVD_OK : refuse(static_cast<int32_t>(status.code()), status.message(), message, bytes);
}

int32_t refuse_without_engine(int32_t frontend, char* message, size_t bytes) {
  if (frontend < 0 || frontend > UINT8_MAX)
    return refuse(HVD_INVALID_ARGUMENT, "frontend " + std::to_string(frontend) + " is unknown", message, bytes);
  std::lock_guard lock(current().mutex);
  if (current().forked) {
    return refuse(
        HVD_SHUTDOWN,
        "this process was forked from a worker after hvd.init() and is not part of the job; collectives run in the worker itself only",
        message, bytes);
  }
  if (current().frontends[static_cast<size_t>(frontend)] == Current::Membership::never) {
    return refuse(HVD_NOT_INITIALIZED, "Horovod has not been initialized in this process; call hvd.init() first", message, bytes);
  }
  return refuse(HVD_SHUTDOWN,
                "Horovod has not been initialized again in this process since it has been shut down; call hvd.init() to start again",
                message, bytes);
}

template <class Enum>
Status known(const char* what, int32_t value, Enum last, Enum* out) {
  if (value < 0 || value > static_cast<int32_t>(last)) {
    return Status(Code::invalid_argument, std::string(what) + " " + std::to_string(value) + " is unknown");
  }
  *out = static_cast<Enum>(value);
  return {};
}

Status read(const HvdRequest& given, Request* to) {
  HvdRequest from{};
  std::memcpy(&from, &given, std::min<size_t>(given.bytes, sizeof from));
  if (given.bytes < offsetof(HvdRequest, device_kind)) {
    return Status(Code::invalid_argument, "a request of " + std::to_string(given.bytes) + " bytes is too short; this library was built " +
                                              "for another version of horovod");
  }
  if (from.device_kind != 0) {
    return Status(Code::invalid_argument, "device_kind must be 0 (host memory) here, got " + std::to_string(from.device_kind));
  }
  HVD_RETURN_IF_ERROR(known("kind", from.kind, Kind::join, &to->kind));
  HVD_RETURN_IF_ERROR(known("frontend", from.frontend, uint8_t{UINT8_MAX}, &to->frontend));
  HVD_RETURN_IF_ERROR(known("dtype", from.dtype, DType::bfloat16, &to->dtype));
  HVD_RETURN_IF_ERROR(known("op", from.op, kLastReduceOp, &to->op));
  HVD_RETURN_IF_ERROR(known("wire", from.wire, WireFormat::int8, &to->wire));
  to->name = to->kind == Kind::join ? "join.noname" : from.name ? from.name : "";
  to->root = from.root;
  to->prescale = from.prescale;
  to->postscale = from.postscale;
  if (from.process_set < 0) return Status(Code::invalid_argument, "process set must be 0 or more, got " + std::to_string(from.process_set));
  to->set = static_cast<uint32_t>(from.process_set);
  to->shape.assign(from.shape, from.shape + from.dimensions);
  to->splits.assign(from.splits, from.splits + from.splits_count);
  to->group = from.group ? from.group : "";
  to->group_size = static_cast<uint32_t>(from.group_size);
  return {};
}

void fill(const Operation& op, HvdResult* result) {
  const Status& status = op.status();
  *result = {static_cast<int32_t>(status.code()),     status.message().c_str(),          op.sizes.data(), op.sizes.size(),
             op.output ? op.output->data() : nullptr, op.output ? op.output->bytes() : 0};
}

struct Caller {
  HvdDone done;
  void* context;
};

void tell(Operation& op, void* context) {
  const std::unique_ptr<Caller> caller(static_cast<Caller*>(context));
  HvdResult result;
  fill(op, &result);
  caller->done(caller->context, &result);
}

int32_t submit(const HvdRequest* request, HvdDone done, void* context, char* message, size_t bytes) {
  const std::shared_ptr<Engine> engine = running(request->frontend);
  if (!engine) return refuse_without_engine(request->frontend, message, bytes);
  Request q;
  if (Status s = read(*request, &q); !s.ok()) return refuse(s, message, bytes);
  auto caller = std::make_unique<Caller>(Caller{done, context});
  const Status status = engine->submit_unattended(std::move(q), static_cast<const std::byte*>(request->in),
                                                  static_cast<std::byte*>(request->out), tell, caller.get());
  if (status.ok()) caller.release();
  return refuse(status, message, bytes);
}

int32_t start(const HvdRequest* request, HvdWork** work, char* message, size_t bytes) {
  std::shared_ptr<Engine> engine = running(request->frontend);
  if (!engine) return refuse_without_engine(request->frontend, message, bytes);
  Request q;
  if (Status s = read(*request, &q); !s.ok()) return refuse(s, message, bytes);
  OperationPtr op;
  const Status status =
      engine->submit_blocking(std::move(q), static_cast<const std::byte*>(request->in), static_cast<std::byte*>(request->out), &op);
  if (status.ok()) *work = new HvdWork{std::move(engine), std::move(op)};
  return refuse(status, message, bytes);
}

int32_t wait(HvdWork* work, double seconds) { return work->engine->wait(*work->op, Deadline::after(seconds)) ? 1 : 0; }
void result(HvdWork* work, HvdResult* out) { fill(*work->op, out); }
void release(HvdWork* work) { delete work; }

int32_t ask(int32_t frontend, int32_t question, int32_t process_set) {
  if (question == HVD_JOB) {
    std::lock_guard lock(current().mutex);
    return current().jobs;
  }
  const std::shared_ptr<Engine> engine = running(frontend);
  if (!engine) return -1;
  std::lock_guard lock(current().mutex);
  if (question < HVD_SET_SIZE) return current().places.at(static_cast<size_t>(question));
  const auto sets = engine->process_sets();
  const auto set = sets.find(static_cast<uint32_t>(process_set));
  if (set == sets.end()) return HVD_UNKNOWN_PROCESS_SET;
  const auto& ranks = set->second;
  if (question == HVD_SET_SIZE) return static_cast<int32_t>(ranks.size());
  const auto me = std::find(ranks.begin(), ranks.end(), current().places[HVD_RANK]);
  if (question == HVD_SET_RANK) return me == ranks.end() ? -2 : static_cast<int32_t>(me - ranks.begin());
  return me != ranks.end();
}

void name_group(int32_t frontend, int32_t kind, int32_t process_set, char* name, size_t bytes) {
  const std::shared_ptr<Engine> engine = running(frontend);
  const std::string made =
      engine ? engine->name_group(static_cast<uint32_t>(process_set), static_cast<uint8_t>(frontend), static_cast<Kind>(kind)) : "";
  copy(made, name, bytes);
}

const HvdFrontendApi table{HVD_FRONTEND_API_VERSION, sizeof(HvdFrontendApi), submit, start, wait, result, release, ask, name_group};

}  // namespace

void set_current(std::shared_ptr<Engine> engine, int rank, int size, int local_rank, int local_size) {
  {
    std::lock_guard lock(current().mutex);
    current().engine.swap(engine);
    current().places = {rank, size, local_rank, local_size};
    ++current().jobs;
  }
  // `engine` now holds the previous engine. If this is the last reference, the engine is destroyed here, outside the
  // lock.
}

void abandon_current() {
  // Deliberately leak the lock and the engine. In a forked child, another thread of the parent might have held the
  // lock, and no part of the engine must be destroyed.
  Current& c = current();
  new (&c.mutex) std::mutex;
  new std::shared_ptr<Engine>(std::move(c.engine));
  c.engine.reset();
  c.forked = true;
}

void serve_frontend(uint8_t frontend, bool in) {
  std::lock_guard lock(current().mutex);
  current().frontends[frontend] = in ? Current::Membership::in : Current::Membership::left;
}

uintptr_t frontend_api() { return reinterpret_cast<uintptr_t>(&table); }

}  // namespace hvd::python
