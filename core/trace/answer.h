// Answers what rank 0 asks about hangs: what this process is doing and has done last. An Observer with a thread of its own, in which
// nothing needs Python to run: stacks are asked of Python, and taken without it (PythonStacks) when it does not give them soon.
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

// Topic::explain, as text: "number;ranks;ranks". The first ranks answer in full, the second ones without stacks, others not at all.
struct Question {
  uint64_t number = 0;
  std::vector<int> full, brief;

  std::string text() const;
  static std::optional<Question> parse(std::string_view text);
};

class Answerer final : public Observer, public std::enable_shared_from_this<Answerer> {
 public:
  // Python has so long to begin with its own stacks, then so long for them, and rank 0's so long for taking notice of a stall.
  static constexpr double kPatience = 1.0, kWork = 1.2, kNotice = 5.0;
  struct Means {
    int rank = 0;
    std::shared_ptr<FlightRecorder> recorder;    // null: it is off
    std::shared_ptr<StepMeter> steps;            // null: nobody counts them
    std::shared_ptr<PythonStacks> stacks;        // null: there are none
    std::function<void(std::string)> reply;      // to rank 0, from the thread
    std::function<void(uint64_t)> ask_python;    // for give(), from the thread
    std::function<void(std::string)> alone;      // rank 0: nobody reads what waits, since Python does not run; these are its stacks
    double notice = kNotice;                     // after so many seconds
  };
  explicit Answerer(Means means);
  ~Answerer() override;  // close()

  // Python has heard ask_python, so it runs, and its stacks must not be looked at without it: they change meanwhile.
  void begun(uint64_t number);
  // Python's answer to ask_python: its stacks as faulthandler writes them, and JSON of what else it knows.
  void give(uint64_t number, std::string stacks, std::string json);
  // The stacks now, Python's own if it gives them in time. Any thread but one that holds Python's lock.
  std::string stacks();
  // Rank 0's Python has heard who waits.
  void noticed();
  // Ends the thread. Nothing is answered any more.
  void close();

  // {"number", "rank", "forced": no answer of Python, "stacks": as faulthandler writes them, "python": JSON from give() or null,
  //  "before", "state": process_state() some tenths of a second apart, "steps": how many it has made, "recent": as in trace/dump.h}
  void heard(int from, uint32_t topic, std::string_view body) override;
  void waiting(std::span<const Negotiator::Waiting> all, double now, bool asked) override;

 private:
  void run();
  struct Given {
    std::string stacks, json;
    bool forced = true;  // not from Python
  };
  std::string answer(const Question& question, bool full);
  Given ask(uint64_t number);

  const Means means_;
  const int process_;  // a forked child has no thread to end
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Question> questions_;
  std::map<uint64_t, Given> given_;
  std::set<uint64_t> begun_;
  uint64_t own_questions_ = 0;
  std::optional<Clock::time_point> unread_;  // since when nobody has taken notice of who waits
  Clock::time_point noticed_{};
  bool closed_ = false;
  std::thread* thread_;
};

}  // namespace hvd
