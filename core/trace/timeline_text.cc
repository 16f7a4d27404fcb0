#include "trace/timeline_text.h"

#include <algorithm>
#include <charconv>

#include "base/json.h"

namespace hvd {
namespace {

enum Thread { kRank = 0, kSchedules = 1, kSteps = 2 };

// Append a time in microseconds, with three decimals.
void append_time(std::string* out, int64_t ns) {
  ns = std::max<int64_t>(ns, 0);
  append_json(out, ns / 1000);
  const int rest = static_cast<int>(ns % 1000);
  const char text[4] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                        static_cast<char>('0' + rest % 10)};
  out->append(text, sizeof text);
}

const char* activity_of(Kind kind, Phase phase, bool mpi) {
  switch (phase) {
    case Phase::allocate_output: return "ALLOCATE_OUTPUT";
    case Phase::copy_in: return "MEMCPY_IN_FUSION_BUFFER";
    case Phase::copy_out: return "MEMCPY_OUT_FUSION_BUFFER";
    default: break;
  }
  switch (kind) {
    case Kind::allgather: return mpi ? "MPI_ALLGATHER" : "GLOO_ALLGATHER";
    case Kind::broadcast: return mpi ? "MPI_BCAST" : "GLOO_BCAST";
    case Kind::alltoall: return mpi ? "MPI_ALLTOALL" : "GLOO_ALLTOALL";
    case Kind::reducescatter: return mpi ? "MPI_REDUCESCATTER" : "GLOO_REDUCESCATTER";
    case Kind::barrier: return mpi ? "MPI_BARRIER" : "GLOO_BARRIER";
    default: return mpi ? "MPI_ALLREDUCE" : "GLOO_ALLREDUCE";
  }
}

}  // namespace

const char* timeline_name(Kind kind, ReduceOp op) {
  switch (kind) {
    case Kind::allreduce: return op == ReduceOp::adasum ? "ADASUM" : "ALLREDUCE";
    case Kind::allgather: return "ALLGATHER";
    case Kind::broadcast: return "BROADCAST";
    case Kind::alltoall: return "ALLTOALL";
    case Kind::reducescatter: return "REDUCESCATTER";
    case Kind::barrier: return "BARRIER";
    case Kind::join: return "JOIN";
    case Kind::add_set: return "ADD_PROCESS_SET";
    case Kind::remove_set: return "REMOVE_PROCESS_SET";
    default: return "SCHEDULE";
  }
}

// ---- Tensors and their pids in the trace ----------------------------------------------------------------------------
bool TimelineTensors::One::same(const Response& r, size_t i) const {
  return name == r.names[i] && set == r.set && frontend == r.frontend && kind == r.kind && op == r.op && dtype == r.dtype &&
         (i >= r.shapes.size() || dimensions == r.shapes[i]);
}

TimelineTensorsPtr TimelineTensors::of(const Response& r) {
  auto made = std::make_shared<TimelineTensors>();
  made->all.reserve(r.names.size());
  static const std::vector<int64_t> none;
  for (size_t i = 0; i < r.names.size(); ++i) {
    const std::vector<int64_t>& shape = i < r.shapes.size() ? r.shapes[i] : none;
    made->all.push_back({r.names[i], shape, shape_string(shape), r.set, r.frontend, r.kind, r.op, r.dtype});
  }
  return made;
}

TimelineTensorsPtr TimelineTensors::of(std::span<const Request> requests) {
  auto made = std::make_shared<TimelineTensors>();
  made->all.reserve(requests.size());
  for (const Request& q : requests) {
    made->all.push_back(
        {q.kind == Kind::join ? kJoinName : q.name, q.shape, shape_string(q.shape), q.set, q.frontend, q.kind, q.op, q.dtype});
  }
  return made;
}

size_t TimelineTensors::bytes() const {
  size_t sum = sizeof *this;
  for (const One& one : all) sum += sizeof one + one.name.size() + one.shape.size();
  return sum;
}

// ---- Events of operations -------------------------------------------------------------------------------------------
void TimelineText::event(char phase, uint32_t pid, int64_t at, std::string_view name, std::string_view rest, std::string* out) const {
  char text[128];
  char* end = text;
  const auto put = [&end](std::string_view piece) { end = std::copy(piece.begin(), piece.end(), end); };
  put("{\"ph\":\"");
  *end++ = phase;
  put("\",\"pid\":");
  end = std::to_chars(end, end + 12, pid).ptr;
  put(",\"ts\":");
  put(time(at));
  if (!name.empty()) {
    put(",\"name\":\"");
    // Event names are internal and need no escapes.
    put(name);
    *end++ = '"';
  }
  if (rest.empty()) put("},\n");
  out->append(text, end);
  if (rest.empty()) return;
  out->append(rest);
  out->append("},\n");
}

std::string_view TimelineText::time(int64_t at) const {
  if (at == written_at_) return written_;
  written_at_ = at;
  written_.clear();
  append_time(&written_, at - about_.start_ns);
  return written_;
}

void TimelineText::own(char phase, int thread, int64_t at, std::string_view name, std::string_view rest, std::string* out) const {
  std::string more = ",\"tid\":";
  append_json(&more, thread);
  more.append(rest);
  event(phase, 0, at, name, more, out);
}

void TimelineText::begin(std::string* out) {
  known_.clear();
  first_ += static_cast<uint32_t>(states_.size());
  states_.clear();
  in_schedule_ = in_round_ = in_step_ = false;
  std::string args = "{";
  append_member(&args, "name", "rank " + std::to_string(about_.rank));
  append_member(&args, "start_time_since_epoch_in_micros", about_.epoch_us);
  *out += "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_name\",\"args\":";
  *out += args;
  *out += "}},\n";
  *out += "{\"ph\":\"M\",\"pid\":0,\"name\":\"process_sort_index\",\"args\":{\"sort_index\":0}},\n";
  std::string more = "{";
  append_member(&more, "rank", about_.rank);
  append_member(&more, "size", about_.size);
  append_member(&more, "host", about_.host);
  append_member(&more, "process", about_.process);
  append_member(&more, "start_ns", about_.start_ns);
  *out += "{\"ph\":\"M\",\"pid\":0,\"name\":\"horovod\",\"args\":";
  *out += more;
  *out += "}},\n";
  for (const auto& [thread, name] : {std::pair{kRank, "rank"}, {kSchedules, "schedules"}, {kSteps, "steps"}}) {
    *out += "{\"ph\":\"M\",\"pid\":0,\"tid\":";
    append_json(out, static_cast<int>(thread));
    *out += ",\"name\":\"thread_name\",\"args\":{\"name\":\"";
    *out += name;
    *out += "\"}},\n";
  }
}

uint32_t TimelineText::pid_of(const TimelineTensors::One& tensor, std::string* out) {
  std::string key = key_of(tensor.set, tensor.frontend, tensor.name);
  const auto it = known_.find(key);
  if (it != known_.end()) return it->second;
  const uint32_t pid = first_ + static_cast<uint32_t>(states_.size());
  known_.emplace(std::move(key), pid);
  states_.emplace_back();
  std::string args = "{";
  append_member(&args, "name", tensor.name);
  if (tensor.set != 0) append_member(&args, "process_set", tensor.set);
  if (tensor.frontend != 0) append_member(&args, "face", static_cast<uint32_t>(tensor.frontend));
  *out += "{\"ph\":\"M\",\"pid\":" + std::to_string(pid) + ",\"name\":\"process_name\",\"args\":" + args + "}},\n";
  *out += "{\"ph\":\"M\",\"pid\":" + std::to_string(pid) +
          ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":" + std::to_string(pid) + "}},\n";
  return pid;
}

const std::vector<uint32_t>& TimelineText::pids_of(const TimelineTensors& tensors, std::string* out) {
  std::vector<uint32_t>& pids = tensors.pids;
  if (pids.size() == tensors.all.size() && tensors.pids_since == first_) return pids;
  tensors.pids_since = first_;
  pids.clear();
  for (const TimelineTensors::One& one : tensors.all) pids.push_back(pid_of(one, out));
  return pids;
}

void TimelineText::leave_negotiation(State& s, uint32_t pid, int64_t at, std::string* out) {
  if (!s.negotiating) return;
  s.negotiating = false;
  event('E', pid, s.last = std::max(at, s.last), {}, {}, out);
}

void TimelineText::ready(int64_t at, int rank, const TimelineTensors& tensors, std::string* out) {
  // Forget all known tensors if there are too many. This happens rarely, so it does not matter that a tensor can be announced twice.
  if (known_.size() + tensors.all.size() > kMaxKnown) {
    close_open(at, out);
    known_.clear();
    first_ += static_cast<uint32_t>(states_.size());
    states_.clear();
  }
  const auto& pids = pids_of(tensors, out);
  for (size_t i = 0; i < pids.size(); ++i) {
    State& s = state(pids[i]);
    // Skip a tensor whose operation is still running in the trace: its end event is missing, or the operation continues under this name.
    if (s.running) continue;
    s.last = std::max(at, s.last);
    if (!s.negotiating) {
      s.negotiating = true;
      const auto& one = tensors.all[i];
      event('B', pids[i], s.last, std::string("NEGOTIATE_") + timeline_name(one.kind, one.op), {}, out);
    }
    event('X', pids[i], s.last, std::to_string(rank), ",\"dur\":0", out);
  }
}

void TimelineText::agreed(int64_t at, const TimelineTensors& tensors, std::string* out) {
  const auto& pids = pids_of(tensors, out);
  for (const uint32_t pid : pids) {
    State& s = state(pid);
    if (!s.negotiating) continue;
    leave_negotiation(s, pid, at, out);
    s.agreed = s.last;
  }
}

void TimelineText::failed(int64_t at, const TimelineTensors& tensors, std::string_view why, std::string* out) {
  std::string rest = ",\"s\":\"p\",\"args\":{";
  append_member(&rest, "error", why);
  rest += '}';
  for (const uint32_t pid : pids_of(tensors, out)) {
    State& s = state(pid);
    leave_negotiation(s, pid, at, out);
    s.agreed = 0;
    event('i', pid, s.last = std::max(at, s.last), "FAILED", rest, out);
  }
}

void TimelineText::started(int64_t at, const Started& about, const TimelineTensors& tensors, std::string* out) {
  const auto& pids = pids_of(tensors, out);
  std::string number = ",\"args\":{\"number\":", more;
  append_json(&number, about.number);
  more = number;
  number += '}';
  append_member(&more, "algorithm", about.algorithm);
  append_member(&more, "bytes", about.bytes);
  append_member(&more, "tensors", pids.size());
  if (about.schedule) append_member(&more, "schedule", about.schedule);
  more += '}';
  for (size_t i = 0; i < pids.size(); ++i) {
    State& s = state(pids[i]);
    const int64_t submitted = i < about.submitted.size() ? about.submitted[i] : 0;
    leave_negotiation(s, pids[i], at, out);
    // End the previous operation, which has no recorded end event.
    if (s.running) {
      if (s.active) event('E', pids[i], s.last, {}, {}, out);
      event('E', pids[i], s.last, {}, {}, out);
    }
    const int64_t queued = std::max(s.agreed ? s.agreed : submitted ? submitted : at, s.last);
    s = State{std::max(at, queued), 0, false, true, false};
    s.mpi = std::string_view(about.algorithm).starts_with("mpi");
    const auto& one = tensors.all[i];
    event('B', pids[i], queued, timeline_name(one.kind, one.op), i == 0 ? more : number, out);
    if (queued < at) {
      event('B', pids[i], queued, "QUEUE", {}, out);
      event('E', pids[i], s.last, {}, {}, out);
    }
  }
}

void TimelineText::entered(int64_t at, Phase phase, const TimelineTensors& tensors, std::string* out) {
  const auto& pids = pids_of(tensors, out);
  for (size_t i = 0; i < pids.size(); ++i) {
    State& s = state(pids[i]);
    if (!s.running) continue;
    s.last = std::max(at, s.last);
    if (s.active) event('E', pids[i], s.last, {}, {}, out);
    event('B', pids[i], s.last, activity_of(tensors.all[i].kind, phase, s.mpi), {}, out);
    s.active = true;
  }
}

void TimelineText::finished(int64_t at, bool good, const TimelineTensors& tensors, std::string* out) {
  const auto& pids = pids_of(tensors, out);
  std::string rest;
  for (size_t i = 0; i < pids.size(); ++i) {
    State& s = state(pids[i]);
    if (!s.running) continue;
    s.last = std::max(at, s.last);
    if (s.active) event('E', pids[i], s.last, {}, {}, out);
    const auto& one = tensors.all[i];
    rest = ",\"args\":{\"dtype\":\"";
    rest.append(name_of(one.dtype));
    rest += "\",\"shape\":\"" + one.shape + (good ? "\"}" : "\",\"broke_off\":true}");
    event('E', pids[i], s.last, {}, rest, out);
    s.running = s.active = false;
  }
}

// ---- Events of the rank itself --------------------------------------------------------------------------------------
void TimelineText::schedule_begun(int64_t at, uint64_t id, size_t buckets, size_t tensors, std::string* out) {
  schedule_ended(at, out);
  std::string rest = ",\"args\":{";
  append_member(&rest, "id", id);
  append_member(&rest, "operations", buckets);
  append_member(&rest, "tensors", tensors);
  rest += '}';
  own('B', kSchedules, at, "SCHEDULE", rest, out);
  in_schedule_ = true;
}

void TimelineText::schedule_round(int64_t at, uint64_t round, std::string* out) {
  if (in_round_) own('E', kSchedules, at, {}, {}, out);
  std::string rest = ",\"args\":{";
  append_member(&rest, "round", round);
  rest += '}';
  own('B', kSchedules, at, "ROUND", rest, out);
  in_round_ = true;
}

void TimelineText::schedule_ended(int64_t at, std::string* out) {
  if (in_round_) own('E', kSchedules, at, {}, {}, out);
  if (in_schedule_) own('E', kSchedules, at, {}, {}, out);
  in_round_ = in_schedule_ = false;
}

void TimelineText::step(int64_t at, int64_t number, std::string* out) {
  if (in_step_) own('E', kSteps, at, {}, {}, out);
  in_step_ = true;
  std::string rest = ",\"args\":{";
  append_member(&rest, "step", number);
  rest += '}';
  own('B', kSteps, at, "STEP", rest, out);
}

void TimelineText::cycle(int64_t at, std::string* out) { own('i', kRank, at, "CYCLE_START", ",\"s\":\"g\"", out); }

void TimelineText::clock(int64_t at, int64_t offset_ns, int64_t error_ns, std::string* out) {
  std::string rest = ",\"args\":{";
  append_member(&rest, "offset_ns", offset_ns);
  append_member(&rest, "error_ns", error_ns);
  rest += '}';
  own('M', kRank, at, "clock_sync", rest, out);
}

void TimelineText::close_open(int64_t at, std::string* out) {
  for (uint32_t i = 0; i < states_.size(); ++i) {
    State& s = states_[i];
    leave_negotiation(s, first_ + i, at, out);
    if (s.active) event('E', first_ + i, std::max(at, s.last), {}, {}, out);
    if (s.running) event('E', first_ + i, std::max(at, s.last), {}, {}, out);
    s = State{std::max(at, s.last), 0, false, false, false};
  }
}

void TimelineText::paused(int64_t at, std::string* out) {
  close_open(at, out);
  schedule_ended(at, out);
  if (in_step_) own('E', kSteps, at, {}, {}, out);
  in_step_ = false;
}

void TimelineText::lost(int64_t at, uint64_t events, std::string* out) {
  close_open(at, out);
  schedule_ended(at, out);
  std::string rest = ",\"s\":\"g\",\"args\":{";
  append_member(&rest, "events", events);
  rest += '}';
  own('i', kRank, at, "LOST", rest, out);
}

void TimelineText::ended(int64_t at, std::string_view why, std::string* out) {
  std::string rest = ",\"s\":\"g\",\"args\":{";
  append_member(&rest, "why", why);
  rest += '}';
  own('i', kRank, at, "ENDED", rest, out);
}

}  // namespace hvd
