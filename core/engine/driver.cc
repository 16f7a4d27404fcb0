#include "engine/driver.h"

#include <time.h>

#include <algorithm>

#include "agree/check_response.h"

namespace hvd {
namespace {

FuseOptions fuse_options(const Settings& s) { return {s.fusion_threshold, s.groups_apart}; }

int parent_of(int rank, const std::vector<int>& node_of) {
  const int leader = static_cast<int>(std::find(node_of.begin(), node_of.end(), node_of[rank]) - node_of.begin());
  return leader == rank ? 0 : leader;
}

}  // namespace

Driver::Driver(EngineOptions& options, Submissions* submissions, Observers* observers, MessageBus* message_bus,
               const AbortRequest* abort_request)
    : rank_(options.rank), labels_(options.labels), settings_(options.settings), log_(options.log), submissions_(submissions),
      observers_(observers), message_bus_(message_bus), abort_request_(abort_request),
      control_(options.rank, std::move(options.parent), parent_of(options.rank, options.node_of), std::move(options.children)),
      connections_(options), backend_(std::move(options.backend)), executor_(&connections_, backend_.get(), observers, &executed_),
      host_staged_path_(options.settings.staged_memory, submissions, observers),
      nccl_path_(options.nccl, backend_.get(), options.log, &nccl_),
      hierarchical_path_(options.nccl, backend_.get(), options.log, &nccl_, options.settings.staged_memory, submissions, observers),
      hosts_first_(options.nccl.by_hosts), ipc_path_(options.ipc, &connections_, backend_.get(), options.log),
      stall_check_(options.settings.stall_warning, options.settings.stall_shutdown, options.labels),
      local_stall_check_(options.settings.stall_warning, options.settings.stall_shutdown, options.labels[options.rank]),
      readiness_vote_(&connections_, backend_.get(), &executor_, options.settings.timeout), recent_(options.settings.cache_capacity) {
  if (rank_ == 0)
    coordinator_ = std::make_unique<Coordinator>(connections_.size(), labels_, fuse_options(settings_), settings_.cache_capacity);
  connections_.waiter().set_hook([this] { return hook(); }, [this](auto& fds) { control_.poll_fds(fds); },
                                 [this] { return control_.work_in_memory(); });
}

double Driver::now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

// ---- One turn of the progress loop ----------------------------------------------------------------------------------
namespace {

// Return the CPU time of this thread in nanoseconds. On a busy machine, wall time would include time in which other
// threads use the core.
uint64_t cpu_ns() {
  timespec t;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace

bool Driver::step(bool flush) {
  // Measure only every kTimed-th turn, because reading the clock takes long compared with an operation of 300 ns.
  constexpr uint64_t kTimed = 251;
  timing_ = ++turns_ % kTimed == 0;
  if (!timing_) return turn(flush);
  in_collectives_ = 0;
  const uint64_t start = cpu_ns();
  const bool moved = turn(flush);
  if (moved) observers_->notify(&Observer::worked, kTimed * (cpu_ns() - start - in_collectives_));
  return moved;
}

Status Driver::carry_out(const Response& response, const std::vector<Operation*>& ops) {
  if (!timing_) return executor_.run(response, ops);
  const uint64_t start = cpu_ns();
  const Status status = executor_.run(response, ops);
  in_collectives_ += cpu_ns() - start;
  return status;
}

bool Driver::turn(bool flush) {
  observers_->refresh();
  // Check for dead neighbours only on the engine's own thread. A waiting caller (`flush`) never runs the progress loop for long.
  if (!flush) control_.probe();
  if (!flush && !shutdown_state_.over()) watch();
  if (!flush && awaits_peers()) {
    if (Status s = connections_.look_for_silence(); !s.ok()) fail(std::move(s), true);
  }
  check_abort_request();
  if (shutdown_state_.over()) {
    // After the end of the job, only relay the goodbye and abort messages of other ranks.
    control_.pump();
    hear_urgent();
    return false;
  }
  if (message_bus_->any()) send_observer_messages();
  bool moved = look_at_devices();
  if (shutdown_state_.over()) return true;
  moved |= take_submissions();
  if (retuning_requested_.load(std::memory_order_relaxed)) apply_retuning();
  if (schedule_sync_) {
    moved |= run_schedule();
    if (shutdown_state_.over()) return true;
    // In a schedule on one node, only the engine's thread handles the sockets, on which it sleeps. A caller needs none of them. In a
    // guarded schedule, a caller needs them only if a rank leaves, so it reads them in every kGuardedTurns-th turn.
    constexpr uint64_t kGuardedTurns = 16;
    const bool skip = schedule_sync_ && (connections_.one_node() || (schedule_sync_->guarded() && turns_ % kGuardedTurns != 0));
    if (skip && flush && !shutdown_state_.leaving()) return moved;
  }
  moved |= send_requests(flush);
  moved |= receive();
  if (!shutdown_state_.over()) moved |= execute_agreed();
  if (!shutdown_state_.over() && departure_complete()) {
    fail(shutdown_state_.why(), false);
    moved = true;
  }
  return moved;
}

bool Driver::take_submissions() {
  if (submissions_->empty() || schedule_sync_) return false;
  for (OperationPtr& op : submissions_->take()) {
    to_request_bytes_ += op->request.bytes();
    to_request_.push_back(std::move(op));
  }
  return true;
}

bool Driver::send_requests(bool flush) {
  if (to_request_.empty() || schedule_sync_) return false;
  const auto quiet = Clock::now() - submissions_->last_submission();
  const bool awaited = std::any_of(to_request_.begin(), to_request_.end(), [](const auto& op) { return op->awaited.load(); });
  // Stop batching when a caller waits, when enough bytes are queued, or when nothing has been submitted for kQuiet.
  constexpr auto kQuiet = std::chrono::microseconds(40);
  const bool old = Clock::now() - to_request_.front()->submitted > std::chrono::duration<double>(settings_.cycle_time);
  if (!flush && !awaited && to_request_bytes_ < settings_.fusion_threshold && quiet < kQuiet && !old) return false;

  std::vector<Request> requests;
  std::vector<OperationPtr> later;
  for (OperationPtr& op : to_request_) {
    Request& q = op->request;
    // A device operation is negotiated a second time, as a host operation (engine/device/host_staged_path.h). Joins and removals of the set
    // must wait for it, because that second negotiation would otherwise fail.
    if (q.kind == Kind::join ? submissions_->on_devices()
                             : q.kind == Kind::remove_set && submissions_->on_devices(static_cast<uint32_t>(q.splits.at(0)))) {
      later.push_back(std::move(op));
      continue;
    }
    if (op->requested == Clock::time_point{}) op->requested = Clock::now();
    if (q.kind == Kind::join) {
      joins_[q.frontend] = op;
    } else {
      if (q.unnamed) q.name = unnamed_prefix(q.kind) + std::to_string(op->unnamed_number);
      pending_[key_of(q)] = op;
    }
    requests.push_back(q);
  }
  to_request_ = std::move(later);
  to_request_bytes_ = 0;
  if (requests.empty()) return false;
  observers_->notify(&Observer::requested, requests);
  send_up(control_, ReadyRequests{epoch_, std::move(requests)});
  return true;
}

// ---- Execution of agreed operations ---------------------------------------------------------------------------------
bool Driver::execute_agreed() {
  bool moved = false;
  // Do not start an operation in which a departed rank takes no part. Its goodbye is already handled, so nothing would end the wait.
  while (!order_.empty() && !shutdown_state_.over() && !schedule_sync_ && !departure_complete()) {
    Response response = std::move(order_.front());
    order_.pop_front();
    execute(std::move(response));
    moved = true;
  }
  return moved;
}

std::vector<Operation*> Driver::find(const Response& response, std::vector<OperationPtr>* keep) {
  std::vector<Operation*> ops;
  for (const std::string& name : response.names) {
    auto it = pending_.find(key_of(response.set, response.frontend, name));
    if (it == pending_.end()) {
      ops.push_back(nullptr);
      continue;
    }
    ops.push_back(it->second.get());
    keep->push_back(std::move(it->second));
    pending_.erase(it);
  }
  return ops;
}

Status Driver::check(const Response& response, const std::vector<Operation*>& ops) {
  if (response.names.empty())
    return Status(Code::internal, "rank 0's decision about " + std::string(name_of(response.kind)) + " names no operation");
  const Comm* comm = connections_.comm(response.set);
  // This rank is not in the process set.
  if (!comm) return {};
  std::vector<const Request*> requests;
  for (const Operation* op : ops) requests.push_back(op ? &op->request : nullptr);
  return check_response(response, requests, comm->size, comm->rank);
}

void Driver::execute(Response response) {
  if (response.kind == Kind::adopt_schedule) {
    adopt(response);
    return;
  }
  ++executed_;
  if (!joins_.empty()) last_executed_ = now();
  std::vector<OperationPtr> keep;
  if (response.kind == Kind::join) {
    const auto it = joins_.find(response.frontend);
    if (it == joins_.end()) return;
    OperationPtr op = std::move(it->second);
    joins_.erase(it);
    op->sizes = response.sizes;
    // Restart the numbering of unnamed operations: a rank that called join() early has numbered fewer of them than others.
    submissions_->restart_unnamed(0, response.frontend);
    finish({op.get()}, {});
    return;
  }
  std::vector<Operation*> ops = find(response, &keep);
  if (!response.error.ok()) {
    observers_->notify(&Observer::failed, response);
    finish(ops, response.error);
    return;
  }
  const bool sets = response.kind == Kind::add_set || response.kind == Kind::remove_set;
  if (Status s = sets ? check_set_change(response, connections_.size()) : check(response, ops); !s.ok()) {
    for (OperationPtr& op : keep) pending_[key_of(op->request)] = std::move(op);
    fail(std::move(s), true);
    return;
  }
  if (sets) {
    apply_set_change(response, ops.empty() ? nullptr : ops.front());
    return;
  }
  const bool have = std::all_of(ops.begin(), ops.end(), [](Operation* op) { return op != nullptr; });
  if (connections_.comm(response.set) && !have && !joins_.count(response.frontend)) {
    fail(Status(Code::internal,
                std::string(name_of(response.kind)) + " '" + response.names.front() + "' was agreed on but never submitted here"),
         true);
    return;
  }
  busy_ = described(response);
  const bool on_device = response.device != DeviceKind::host && connections_.comm(response.set);
  const Status status = on_device ? launch(response, ops, &keep) : carry_out(response, ops);
  busy_.clear();
  if (status.ok()) {
    for (Operation* op : ops) {
      if (op) recent_.remember(op->request);
    }
    if (!on_device) finish(ops, status);
    return;
  }
  // Put the operations back, so that collective_failed() completes them together with all other unfinished operations.
  for (OperationPtr& op : keep) pending_[key_of(op->request)] = std::move(op);
  collective_failed(status);
}

void Driver::apply_set_change(const Response& response, Operation* op) {
  const bool add = response.kind == Kind::add_set;
  if (add) {
    const auto id = static_cast<uint32_t>(response.sizes.at(0));
    std::vector<int> ranks(response.sizes.begin() + 2, response.sizes.end());
    host_staged_path_.forget(id);
    nccl_path_.forget(id);
    hierarchical_path_.forget(id);
    ipc_path_.forget(id);
    connections_.add_set(id, static_cast<uint32_t>(response.sizes.at(1)) + 1, ranks);
    submissions_->add_set(id, std::move(ranks));
  } else if (response.sizes.at(0)) {
    const auto id = static_cast<uint32_t>(response.sizes.at(1));
    submissions_->remove_set(id);
    nccl_path_.forget(id);
    hierarchical_path_.forget(id);
    ipc_path_.forget(id);
    if (const Comm* comm = connections_.comm(id)) backend_->set_removed(*comm);
    connections_.remove_set(id);
  }
  if (!op) return;
  op->sizes = {response.sizes.at(0)};
  finish({op}, {});
}

void Driver::finish(const std::vector<Operation*>& ops, const Status& status) {
  submissions_->release(ops);
  for (Operation* op : ops) {
    if (op) op->complete(status);
  }
}

}  // namespace hvd
