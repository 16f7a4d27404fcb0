// Answers to rank 0's queries: with Python's help, without it, and for processes that cannot answer
// themselves.
#include "trace/answer.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "contains.h"
#include "trace/process_state.h"

using namespace hvd;
using namespace hvd::testing;

namespace {

// The answerer's messages.
class Heard {
 public:
  void put(std::string text) {
    std::lock_guard lock(mutex_);
    all_.push_back(std::move(text));
    changed_.notify_all();
  }
  std::string next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(20), [this] { return !all_.empty(); })) return "nothing";
    std::string text = all_.front();
    all_.erase(all_.begin());
    return text;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> all_;
};

int stacks_fd = -1;
void write_stacks(int) { [[maybe_unused]] const ssize_t n = ::write(stacks_fd, "Thread \"x\"\n", 11); }

// Registered like Python's faulthandler.
std::shared_ptr<PythonStacks> stacks_of(int signal) {
  stacks_fd = ::memfd_create("stacks", MFD_CLOEXEC);
  struct sigaction action{};
  action.sa_handler = &write_stacks;
  REQUIRE(::sigaction(signal, &action, nullptr) == 0);
  return std::make_shared<PythonStacks>(signal, stacks_fd);
}

void ask(Answerer& answerer, const Question& question) { answerer.received(0, static_cast<uint32_t>(Topic::explain), question.text()); }

TEST_CASE("a question reads as it was written, and nonsense is none") {
  const Question question{42, {0, 3, 17}, {5}};
  const auto read = Question::parse(question.text());
  REQUIRE(read);
  CHECK(read->number == 42);
  CHECK(read->full == std::vector<int>{0, 3, 17});
  CHECK(read->brief == std::vector<int>{5});
  CHECK(Question::parse("1;;")->full.empty());
  for (const char* bad : {"", ";", "x;1;2", "1;1,x;2", "-1;1;2"}) CHECK(!Question::parse(bad));
}

TEST_CASE("it answers with Python's stacks, without Python when that does not answer, and only when it is meant") {
  Heard heard, wanted;
  Answerer::Means means;
  means.rank = 3;
  means.recorder = std::make_shared<FlightRecorder>(10);
  Request q;
  q.name = "a \"name\"";
  means.recorder->requested(std::vector<Request>{q});
  means.stacks = stacks_of(SIGRTMIN + 7);
  means.reply = [&](std::string text) { heard.put(std::move(text)); };
  means.ask_python = [&](uint64_t number) { wanted.put(std::to_string(number)); };
  Answerer answerer(std::move(means));
  ask(answerer, {1, {0, 2}, {}});
  answerer.received(0, static_cast<uint32_t>(Topic::python), "1;3;");
  answerer.received(0, static_cast<uint32_t>(Topic::explain), "nonsense");
  ask(answerer, {2, {3}, {}});
  CHECK(wanted.next() == "2");
  answerer.give(2, "of Python", "{\"main\":1}");
  std::string text = heard.next();
  CHECK(contains(text, "\"number\":2,\"rank\":3,\"forced\":false,\"stacks\":\"of Python\",\"python\":{\"main\":1}"));
  CHECK(contains(text, "a \\\"name\\\""));
  CHECK(contains(text, "\"pid\":" + std::to_string(::getpid())));
  ask(answerer, {3, {3}, {}});  // and no answer arrives
  text = heard.next();
  CHECK(contains(text, "\"number\":3,\"rank\":3,\"forced\":true,\"stacks\":\"Thread \\\"x\\\"\\u000a\",\"python\":null"));
  CHECK(wanted.next() == "3");
  ask(answerer, {6, {3}, {}});  // Python has been busy for long, but runs, so its stacks are not read from outside
  CHECK(wanted.next() == "6");
  answerer.begun(6);
  text = heard.next();
  CHECK(contains(text, "\"number\":6,\"rank\":3,\"forced\":false,\"stacks\":\"\",\"python\":null"));
  ask(answerer, {4, {}, {3}});
  text = heard.next();
  CHECK(contains(text, "\"number\":4,\"rank\":3,\"forced\":false,\"stacks\":\"\""));
  CHECK(answerer.stacks() == "Thread \"x\"\n");
  wanted.next();
  std::thread late([&] { CHECK(answerer.stacks() == ""); });
  wanted.next();
  answerer.close();  // by Python, which runs
  late.join();
  ask(answerer, {5, {3}, {}});
}

TEST_CASE("rank 0 whose Python takes no notice of a stall says so itself") {
  Heard alone;
  Answerer::Means means;
  means.stacks = stacks_of(SIGRTMIN + 7);
  std::atomic<int> times{0};
  means.alone = [&](std::string stacks) {
    ++times;
    alone.put(std::move(stacks));
  };
  means.notice = 0.3;
  Answerer answerer(std::move(means));
  const std::vector<Negotiator::Waiting> waiting{{"x", 0, 0, {0}, {1}}};
  answerer.waiting(waiting, 1, false);
  answerer.noticed();
  answerer.waiting(waiting, 1, false);
  answerer.waiting({}, 1, false);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  answerer.waiting(waiting, 2, true);  // on request, waiting operations are reported even if they have not waited long
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(times == 0);
  answerer.waiting(waiting, 2, false);
  CHECK(alone.next() == "Thread \"x\"\n");
}

TEST_CASE("what the kernel says of a process: running, stopped, gone") {
  CHECK(contains(process_state(::getpid()), "\"threads\":[{\"id\":" + std::to_string(::getpid()) + ",\"name\":"));
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  ::kill(child, SIGSTOP);
  ::waitpid(child, nullptr, WUNTRACED);
  CHECK(contains(process_state(child), "\"state\":\"T\""));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK(process_state(child).empty());
}

}  // namespace
