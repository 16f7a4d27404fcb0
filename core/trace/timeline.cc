#include "trace/timeline.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/thread.h"
#include "trace/topics.h"

namespace hvd {
namespace {

// Approximate number of bytes of text per write.
constexpr size_t kPiece = 64u << 10;
constexpr size_t kMaxSeen = 4096;

TimelineText::About about(const TimelineOptions& o) {
  const int64_t epoch = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return {o.rank, o.size, o.host, monotonic_ns(), epoch, static_cast<int64_t>(::getpid())};
}

}  // namespace

std::string timeline_before(const std::string& path) {
  const size_t slash = path.rfind('/');
  const size_t dot = path.rfind('.');
  const bool suffix = dot != std::string::npos && dot != 0 && (slash == std::string::npos || dot > slash + 1);
  const size_t at = suffix ? dot : path.size();
  return path.substr(0, at) + ".before" + path.substr(at);
}

Status Timeline::start(TimelineOptions options, std::shared_ptr<Timeline>* out, int* error) {
  std::unique_ptr<TimelineFile> file;
  HVD_RETURN_IF_ERROR(TimelineFile::open(options.path, &file, error));
  std::shared_ptr<Timeline> made(new Timeline(std::move(options), std::move(file)));
  if (Status s = made->status(); !s.ok()) {
    *error = ENOSPC;
    return s;
  }
  *out = std::move(made);
  return {};
}

Timeline::Timeline(TimelineOptions options, std::unique_ptr<TimelineFile> file)
    : options_(std::move(options)), taking_(options_.first_step <= 0), text_(about(options_)), file_(std::move(file)),
      clock_known_(options_.clock_of_rank0), process_(::getpid()) {
  std::string text;
  text_.begin(&text);
  if (clock_known_) text_.clock(monotonic_ns(), 0, 0, &text);
  if (Status s = file_->append(text); !s.ok()) {
    status_ = std::move(s);
    return;
  }
  // Block all signals on the thread, including SIGXFSZ (file size limit exceeded), for which the program might have no handler.
  thread_ = std::make_unique<std::thread>(thread_without_signals([this] { run(); }));
}

Timeline::~Timeline() { close(); }

void Timeline::close() {
  std::lock_guard once(close_mutex_);
  if (!thread_) return;
  // The thread does not run in a forked child.
  if (process_ != ::getpid()) {
    (void)thread_.release();
    return;
  }
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  thread_->join();
  thread_.reset();
}

uint64_t Timeline::lost() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

Status Timeline::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

// ---- Recording of events --------------------------------------------------------------------------------------------
void Timeline::push(Event event, size_t more_bytes) {
  const size_t bytes = sizeof(Event) + event.text.size() + more_bytes;
  bool first;
  {
    std::lock_guard lock(mutex_);
    if (closing_ || !status_.ok()) return;
    if (waiting_bytes_ + bytes > options_.most_bytes) {
      ++lost_;
      return;
    }
    first = waiting_.empty();
    if (lost_ != reported_lost_) {
      Event lost(What::lost);
      lost.number = static_cast<int64_t>(lost_ - reported_lost_);
      reported_lost_ = lost_;
      waiting_.push_back(std::move(lost));
    }
    waiting_bytes_ += bytes;
    waiting_.push_back(std::move(event));
  }
  if (first) wake_.notify_one();
}

// Return the tensors of a response, from a cache keyed by its address. Most responses belong to a schedule and do not move.
TimelineTensorsPtr Timeline::tensors_of(const Response& r) {
  if (seen_.size() > kMaxSeen) seen_.clear();
  Seen& seen = seen_[&r];
  if (seen.stays) return seen.tensors;
  bool same = seen.tensors && seen.tensors->all.size() == r.names.size();
  for (size_t i = 0; same && i < r.names.size(); ++i) same = seen.tensors->all[i].same(r, i);
  if (!same) seen.tensors = TimelineTensors::of(r);
  return seen.tensors;
}

void Timeline::requested(std::span<const Request> requests) {
  look_at_clock();
  if (!taking()) return;
  Event e(What::ready);
  e.number = options_.rank;
  e.tensors = TimelineTensors::of(requests);
  const size_t bytes = e.tensors->bytes();
  if (options_.mark_cycles) push(Event(What::cycle));
  push(std::move(e), bytes);
}

void Timeline::noticed(int from, std::span<const Request> requests) {
  // requested() already records this rank's own requests.
  if (from == options_.rank || !taking()) return;
  Event e(What::ready);
  e.number = from;
  e.tensors = TimelineTensors::of(requests);
  const size_t bytes = e.tensors->bytes();
  push(std::move(e), bytes);
}

void Timeline::agreed(std::span<const Response> responses) {
  if (!taking()) return;
  for (const Response& r : responses) {
    if (r.kind == Kind::adopt_schedule) continue;
    Event e(What::agreed);
    e.tensors = TimelineTensors::of(r);
    const size_t bytes = e.tensors->bytes();
    push(std::move(e), bytes);
  }
}

void Timeline::failed(const Response& r) {
  if (!taking()) return;
  Event e(What::failed);
  e.tensors = TimelineTensors::of(r);
  e.text = r.error.message();
  const size_t bytes = e.tensors->bytes();
  push(std::move(e), bytes);
}

void Timeline::started(const Execution& execution) {
  look_at_clock();
  const bool new_round = &execution.response == first_;
  if (new_round && !explicit_steps_) begin_step(static_cast<int64_t>(all_rounds_++));
  if (!taking()) return;
  current_ = tensors_of(execution.response);
  Event e(What::started);
  if (new_round) {
    Event round(What::round);
    round.number = static_cast<int64_t>(rounds_++);
    round.at = e.at;
    if (options_.mark_cycles) {
      Event cycle(What::cycle);
      cycle.at = e.at;
      push(std::move(cycle));
    }
    push(std::move(round));
  }
  e.tensors = current_;
  e.begun = std::make_unique<Begun>(Begun{execution.number, execution.bytes, schedule_, std::string(execution.algorithm()), {}});
  e.begun->submitted.reserve(execution.operations.size());
  for (const Operation* op : execution.operations)
    e.begun->submitted.push_back(op && op->submitted_ticks > began_ ? op->submitted_ticks : 0);
  const size_t bytes = sizeof(Begun) + execution.operations.size() * sizeof(uint64_t) + current_->all.size() * sizeof(void*);
  push(std::move(e), bytes);
}

void Timeline::entered(const Execution&, Phase phase) {
  if (!taking()) return;
  Event e(What::entered);
  e.phase = phase;
  e.tensors = current_;
  if (current_) push(std::move(e));
}

void Timeline::finished(const Execution&, const Status& status) {
  Event e(What::finished);
  e.good = status.ok();
  e.tensors = std::move(current_);
  current_.reset();
  if (e.tensors) push(std::move(e));
}

void Timeline::schedule_begun(const Schedule& schedule) {
  seen_.clear();
  schedule_ = schedule.id;
  rounds_ = 0;
  first_ = schedule.buckets.empty() ? nullptr : &schedule.buckets.front().parts.front();
  if (!taking()) return;
  Event e(What::schedule_begun);
  e.number = static_cast<int64_t>(schedule.buckets.size());
  e.more = static_cast<int64_t>(schedule.entries.size());
  e.text = std::to_string(schedule.id);
  push(std::move(e));
}

void Timeline::bucket_done(const Schedule::Bucket& bucket) {
  for (const Response& part : bucket.parts) {
    if (const auto it = seen_.find(&part); it != seen_.end()) it->second.stays = true;
  }
}

void Timeline::schedule_ended(const Schedule&, uint64_t) {
  seen_.clear();
  schedule_ = 0;
  first_ = nullptr;
  if (taking()) push(Event(What::schedule_ended));
}

void Timeline::step(int64_t number) {
  explicit_steps_ = true;
  begin_step(number);
}

void Timeline::begin_step(int64_t number) {
  if (options_.first_step >= 0) {
    const bool now = number >= options_.first_step && (options_.end_step < 0 || number < options_.end_step);
    if (taking_.exchange(now) && !now) push(Event(What::paused));
    if (!now) return;
  }
  Event e(What::step);
  e.number = number;
  push(std::move(e));
}

void Timeline::awake() {
  if (options_.mark_cycles && taking()) push(Event(What::cycle));
  look_at_clock();
}

void Timeline::ended(const Status& why) {
  if (reported_end_.exchange(true)) return;
  Event e(What::ended);
  e.text = why.message();
  push(std::move(e));
  {
    std::lock_guard lock(mutex_);
    hurry_ = true;
  }
  wake_.notify_one();
}

void Timeline::look_at_clock() {
  if (options_.clock_of_rank0 || !options_.say) return;
  // Ticks between two readings of the system's clock, which would take too long for each event.
  constexpr uint64_t kMoment = 1 << 16;
  const uint64_t now = ticks();
  if (now - looked_ < kMoment) return;
  looked_ = now;
  if (auto question = offset_.question(monotonic_ns())) options_.say({0, static_cast<uint32_t>(Topic::clock_ask), std::move(*question)});
}

void Timeline::received(int from, uint32_t topic, std::string_view body) {
  if (from != 0 || topic != static_cast<uint32_t>(Topic::clock_told) || options_.clock_of_rank0) return;
  const auto known = offset_.hear(body, monotonic_ns());
  if (!known) return;
  Event e(What::clock);
  e.number = known->offset;
  e.more = known->error;
  push(std::move(e));
}

// ---- The writer thread ----------------------------------------------------------------------------------------------
void Timeline::run() {
  pthread_setname_np(pthread_self(), "hvd-timeline");
  // Give this thread the lowest priority, because training goes first. If the thread gets no CPU time for long, events
  // are dropped and counted.
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), 19);
  std::vector<Event> events;
  for (bool over = false; !over;) {
    events.clear();
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
      const Deadline next = Deadline::after(options_.between_writes);
      wake_.wait_until(lock, next.when(), [this] { return closing_ || hurry_; });
      hurry_ = false;
      over = closing_;
      events.swap(waiting_);
      waiting_bytes_ = 0;
    }
    write(events);
  }
  file_->close();
}

void Timeline::write(std::vector<Event>& events) {
  if (events.empty()) return;
  const TickScale::Line line = scale_.line();
  std::string text;
  for (Event& e : events) {
    put_down(e, line, &text);
    if (text.size() > kPiece) append(&text);
  }
  append(&text);
  if (options_.keep > 0 && Clock::now() - file_began_ > std::chrono::duration<double>(options_.keep)) begin_anew();
}

void Timeline::append(std::string* text) {
  if (!status().ok()) return;
  Status s = file_->append(*text);
  text->clear();
  if (s.ok()) return;
  {
    std::lock_guard lock(mutex_);
    status_ = s;
    waiting_.clear();
  }
  if (options_.log) {
    options_.log(LogLevel::warning,
                 "timeline: " + s.message() + "; the timeline ends here, what was written before stays readable, the job goes on");
  }
}

void Timeline::begin_anew() {
  file_began_ = Clock::now();
  if (!status().ok()) return;
  file_->close();
  Status s;
  int error = 0;
  const std::string before = timeline_before(options_.path);
  if (::rename(options_.path.c_str(), before.c_str()) != 0) {
    s = Status(Code::internal, options_.path + ": cannot be renamed to " + before + ": " + ::strerror(errno));
  } else {
    std::unique_ptr<TimelineFile> next;
    s = TimelineFile::open(options_.path, &next, &error);
    if (s.ok()) file_ = std::move(next);
  }
  std::string text;
  if (s.ok()) {
    text_.begin(&text);
    if (clock_known_) text_.clock(monotonic_ns(), clock_.offset, clock_.error, &text);
    append(&text);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    status_ = s;
  }
  if (options_.log) options_.log(LogLevel::warning, "timeline: " + s.message() + "; the timeline ends here, the job goes on");
}

void Timeline::put_down(Event& e, const TickScale::Line& line, std::string* text) {
  const int64_t at = line.ns(e.at);
  switch (e.what) {
    case What::ready: return text_.ready(at, static_cast<int>(e.number), *e.tensors, text);
    case What::agreed: return text_.agreed(at, *e.tensors, text);
    case What::failed: return text_.failed(at, *e.tensors, e.text, text);
    case What::started: {
      TimelineText::Started started{e.begun->number, e.begun->bytes, e.begun->schedule, std::move(e.begun->algorithm), {}};
      started.submitted.reserve(e.begun->submitted.size());
      for (uint64_t t : e.begun->submitted) started.submitted.push_back(t ? line.ns(t) : 0);
      return text_.started(at, started, *e.tensors, text);
    }
    case What::entered: return text_.entered(at, e.phase, *e.tensors, text);
    case What::finished: return text_.finished(at, e.good, *e.tensors, text);
    case What::schedule_begun:
      return text_.schedule_begun(at, std::stoull(e.text), static_cast<size_t>(e.number), static_cast<size_t>(e.more), text);
    case What::round: return text_.schedule_round(at, static_cast<uint64_t>(e.number), text);
    case What::schedule_ended: return text_.schedule_ended(at, text);
    case What::step: return text_.step(at, e.number, text);
    case What::cycle: return text_.cycle(at, text);
    case What::paused: return text_.paused(at, text);
    case What::clock:
      clock_ = {e.number, e.more};
      clock_known_ = true;
      return text_.clock(at, e.number, e.more, text);
    case What::lost: return text_.lost(at, static_cast<uint64_t>(e.number), text);
    case What::ended: return text_.ended(at, e.text, text);
  }
}

}  // namespace hvd
