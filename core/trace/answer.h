// Answerer: observer that answers rank 0's questions about hangs, that is, what this process is doing and what it did last. Its thread
// works even if Python is hung. It asks Python for its stacks, and reads them directly if Python takes too long (PythonStacks).
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

// Question about a hang, sent as text of the form "number;ranks;ranks" (Topic::explain). Ranks in the first list send full answers, and
// ranks in the second list leave out the stacks. Other ranks do not answer.
struct Question {
  uint64_t number = 0;
  std::vector<int> full, brief;

  std::string text() const;
  static std::optional<Question> parse(std::string_view text);
};

class Answerer final : public Observer, public std::enable_shared_from_this<Answerer> {
 public:
  // Time limits in seconds for Python: to start its answer to a question (kPatience), to finish it (kWork), and on rank 0 to read a stall
  // report (kNotice).
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
    // Function that asks Python, which might be hung, to call give(number). Called on the answerer's thread.
    std::function<void(uint64_t)> ask_python;
    // Function that gets the stacks if Python is hung and thus cannot report a stall. Set only on rank 0.
    std::function<void(std::string)> alone;
    // Seconds after which `alone` is called if Python on rank 0 has not read a stall report.
    double notice = kNotice;
  };
  explicit Answerer(Means means);
  ~Answerer() override;

  // Record that Python has received ask_python. It is then not hung, so PythonStacks must not read its stacks, which are changing.
  void begun(uint64_t number);
  // Store Python's answer to ask_python: its stacks in faulthandler's format, and all other information as JSON.
  void give(uint64_t number, std::string stacks, std::string json);
  // Return Python's current stacks, written by Python itself if it answers in time. Callable from any thread that does not hold the GIL.
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
  // Arrival time of a report of waiting operations that Python has not read yet.
  std::optional<Clock::time_point> unread_;
  Clock::time_point noticed_{};
  bool closed_ = false;
  std::thread* thread_;
};

}  // namespace hvd
