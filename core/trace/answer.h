// The Answerer replies to rank 0's questions about hangs: what this process is doing, and what it did last. It is an
// Observer with a thread that works even if Python is hung. It asks Python for its stacks, and reads the stacks
// directly if Python takes too long (PythonStacks).
#pragma once
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "engine/observer.h"
#include "trace/python_stacks.h"
#include "trace/recorder.h"
#include "trace/steps.h"
#include "trace/topics.h"

namespace hvd {

// Content of a Topic::explain message. Its text has the form "number;ranks;ranks". Ranks in the first list send full
// answers, and ranks in the second list leave out the stacks. Other ranks do not answer.
struct Question {
  uint64_t number = 0;
  std::vector<int> full, brief;

  std::string text() const;
  static std::optional<Question> parse(std::string_view text);
};

class Answerer final : public Observer, public std::enable_shared_from_this<Answerer> {
 public:
  // Time limits in seconds. After a question from rank 0, Python must start its answer within kPatience and finish it
  // within kWork. On rank 0, Python must read a stall report within kNotice.
  static constexpr double kPatience = 1.0, kWork = 1.2, kNotice = 5.0;
  struct Means {
    int rank = 0;
    // Flight recorder, or null if it is disabled.
    std::shared_ptr<FlightRecorder> recorder;
    // Step meter, or null if steps are not counted.
    std::shared_ptr<StepMeter> steps;
    // Reader of Python's stacks, or null if it is not available.
    std::shared_ptr<PythonStacks> stacks;
    // Function that sends an answer to rank 0. Called on the answerer's thread.
    std::function<void(std::string)> reply;
    // Function that asks Python, which might be hung, to call give(number). It is called on the answerer's thread.
    std::function<void(uint64_t)> ask_python;
    // Function that receives the stacks if Python is hung and cannot report a stall itself. Set only on rank 0.
    std::function<void(std::string)> alone;
    // Seconds for which Python on rank 0 can leave a stall report unread. After that time, `alone` is called.
    double notice = kNotice;
  };
  explicit Answerer(Means means);
  ~Answerer() override;

  // Record that Python has received ask_python and is therefore not hung. Its stacks must then not be read by
  // PythonStacks, because they are changing.
  void begun(uint64_t number);
  // Store Python's answer to ask_python: its stacks in faulthandler's format, and all other information as JSON.
  void give(uint64_t number, std::string stacks, std::string json);
  // Return the current stacks. Python writes them itself if it answers in time. Callable from any thread that does not
  // hold the GIL.
  std::string stacks();
  // Record that Python on rank 0 has read the report of waiting operations.
  void noticed();
  // Stop the thread. Questions that arrive later are not answered.
  void close();

  // Answer a question. The answer is a JSON object with these members: "number" and "rank"; "forced", true if Python
  // did not answer in time; "stacks" in faulthandler's format; "python", the JSON that was passed to give(), or null;
  // "before" and "state", two results of process_state() a few tenths of a second apart; "steps", the number of steps;
  // "recent", as described in trace/dump.h.
  void received(int from, uint32_t topic, std::string_view body) override;
  void waiting(std::span<const Negotiator::Waiting> all, double now, bool asked) override;

 private:
  void run();
  struct Given {
    std::string stacks, json;
    // True if Python did not answer.
    bool forced = true;
  };
  std::string answer(const Question& question, bool full);
  Given ask(uint64_t number);

  const Means means_;
  // PID of the process that owns the thread. In a forked child, the thread does not exist.
  const int process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Question> questions_;
  std::map<uint64_t, Given> given_;
  std::set<uint64_t> begun_;
  uint64_t own_questions_ = 0;
  // Arrival time of the report of waiting operations that Python has not read yet, if there is one.
  std::optional<Clock::time_point> unread_;
  Clock::time_point noticed_{};
  bool closed_ = false;
  std::thread* thread_;
};

}  // namespace hvd
