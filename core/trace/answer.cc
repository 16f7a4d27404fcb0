#include "trace/answer.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/thread.h"
#include "trace/dump.h"
#include "trace/process_state.h"

namespace hvd {
namespace {

constexpr size_t kRecentInFull = 60, kRecentInBrief = 20;
constexpr size_t kQuestionsAtOnce = 8;

// Parse comma-separated numbers up to a semicolon or the end.
template <class T>
bool take(std::string_view* text, std::vector<T>* out) {
  while (!text->empty() && text->front() != ';') {
    T value{};
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc()) return false;
    out->push_back(value);
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    if (!text->empty() && text->front() == ',') text->remove_prefix(1);
  }
  if (!text->empty()) text->remove_prefix(1);
  return true;
}

bool among(int rank, const std::vector<int>& ranks) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

}  // namespace

std::string Question::text() const {
  std::string out = std::to_string(number) + ';';
  append_items(&out, full);
  out += ';';
  append_items(&out, brief);
  return out;
}

std::optional<Question> Question::parse(std::string_view text) {
  std::vector<uint64_t> number;
  Question question;
  if (!take(&text, &number) || number.size() != 1 || !take(&text, &question.full) || !take(&text, &question.brief)) return std::nullopt;
  question.number = number.front();
  return question;
}

Answerer::Answerer(Means means) : means_(std::move(means)), process_(::getpid()) {
  thread_ = new std::thread(thread_without_signals([this] { run(); }));
}

Answerer::~Answerer() { close(); }

void Answerer::close() {
  // A forked child has no such thread, and the lock might be held by a thread that exists only in the parent.
  if (::getpid() != process_) return;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  if (!thread_) return;
  thread_->join();
  delete thread_;
  thread_ = nullptr;
}

void Answerer::begun(uint64_t number) {
  {
    std::lock_guard lock(mutex_);
    if (begun_.size() >= kQuestionsAtOnce) begun_.clear();
    begun_.insert(number);
  }
  changed_.notify_all();
}

void Answerer::give(uint64_t number, std::string stacks, std::string json) {
  {
    std::lock_guard lock(mutex_);
    // Delete answers that came too late to be collected.
    if (given_.size() >= kQuestionsAtOnce) given_.clear();
    given_[number] = {std::move(stacks), std::move(json), false};
  }
  changed_.notify_all();
}

void Answerer::noticed() {
  std::lock_guard lock(mutex_);
  unread_.reset();
  noticed_ = Clock::now();
}

void Answerer::received(int, uint32_t topic, std::string_view body) {
  if (topic != static_cast<uint32_t>(Topic::explain)) return;
  std::optional<Question> question = Question::parse(body);
  if (!question || (!among(means_.rank, question->full) && !among(means_.rank, question->brief))) return;
  {
    std::lock_guard lock(mutex_);
    if (closed_ || questions_.size() >= kQuestionsAtOnce) return;
    questions_.push_back(std::move(*question));
  }
  changed_.notify_all();
}

void Answerer::waiting(std::span<const Negotiator::Waiting> all, double, bool asked) {
  // Reports that were requested, for example every second by the live page, do not indicate a stall.
  if (asked || all.empty() || !means_.alone) return;
  {
    std::lock_guard lock(mutex_);
    // Ignore a report that Python has read within the last 100 ms: the observer that passes it to Python can be called before this one.
    const auto now = Clock::now();
    if (!unread_ && now - noticed_ > std::chrono::milliseconds(100)) unread_ = now;
  }
  changed_.notify_all();
}

void Answerer::run() {
  pthread_setname_np(pthread_self(), "hvd-answer");
  std::unique_lock lock(mutex_);
  while (!closed_) {
    if (!questions_.empty()) {
      const Question question = std::move(questions_.front());
      questions_.erase(questions_.begin());
      lock.unlock();
      std::string text = answer(question, among(means_.rank, question.full));
      if (means_.reply) means_.reply(std::move(text));
      lock.lock();
      continue;
    }
    const auto due = unread_ ? *unread_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(means_.notice))
                             : Clock::time_point::max();
    if (Clock::now() < due) {
      if (unread_) {
        changed_.wait_until(lock, due);
      } else {
        changed_.wait(lock);
      }
      continue;
    }
    unread_.reset();
    lock.unlock();
    means_.alone(means_.stacks ? means_.stacks->take() : "");
    lock.lock();
  }
}

Answerer::Given Answerer::ask(uint64_t number) {
  Given given;
  if (means_.ask_python) {
    means_.ask_python(number);
    std::unique_lock lock(mutex_);
    const auto over = [&] { return closed_ || given_.count(number); };
    changed_.wait_for(lock, std::chrono::duration<double>(kPatience), [&] { return over() || begun_.count(number); });
    if (begun_.count(number)) changed_.wait_for(lock, std::chrono::duration<double>(kWork), over);
    // Python is not hung if it has closed this object.
    const bool runs = closed_ || begun_.erase(number);
    if (const auto found = given_.extract(number)) given = std::move(found.mapped());
    if (runs) given.forced = false;
  }
  if (given.forced && means_.stacks) given.stacks = means_.stacks->take();
  return given;
}

std::string Answerer::stacks() {
  // First number of questions that this rank asks itself. Rank 0's questions have lower numbers.
  constexpr uint64_t kOwn = uint64_t{1} << 62;
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = kOwn + ++own_questions_;
  }
  return ask(number).stacks;
}

std::string Answerer::answer(const Question& question, bool full) {
  const std::string before = process_state(process_, 0);
  const Deadline apart = Deadline::after(0.2);
  Given given;
  if (full) {
    given = ask(question.number);
    std::unique_lock lock(mutex_);
    // Let some time pass between the two readings of the process state, so that rates can be computed.
    changed_.wait_until(lock, apart.when(), [this] { return closed_; });
  }
  std::string out = "{";
  append_member(&out, "number", question.number);
  append_member(&out, "rank", means_.rank);
  append_member(&out, "forced", full && given.forced);
  append_member(&out, "stacks", given.stacks);
  const auto part = [&out](const char* name, const std::string& json) {
    append_name(&out, name);
    out.append(json.empty() ? "null" : json);
  };
  part("python", given.json);
  part("before", before);
  part("state", process_state(process_));
  append_member(&out, "steps", means_.steps ? means_.steps->made() : 0);
  append_name(&out, "recent");
  out += '[';
  if (means_.recorder) {
    const TickScale::Line line = means_.recorder->line();
    bool first = true;
    for (const FlightRecorder::Entry& entry : means_.recorder->last(full ? kRecentInFull : kRecentInBrief)) {
      if (!first) out += ',';
      first = false;
      append_entry(&out, entry, line);
    }
  }
  return out + "]}";
}

}  // namespace hvd
