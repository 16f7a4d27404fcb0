// Timeline: an Observer that writes the events of operations on this rank to a file for trace viewers. The driver
// records events in memory, at about 100 ns each. A separate thread converts them to text (timeline_text.h) and writes
// them to the file (timeline_file.h) ten times per second. Unwritten events are limited; further ones are dropped and
// counted.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "base/ticks.h"
#include "engine/observer.h"
#include "engine/observers.h"
#include "trace/clock.h"
#include "trace/timeline_file.h"
#include "trace/timeline_text.h"

namespace hvd {

// Options of a timeline.
struct TimelineOptions {
  std::string path;
  int rank = 0, size = 1;
  std::string host;
  bool mark_cycles = false;
  // 0: keep everything. Otherwise the file keeps the events of the last `keep` to 2 * `keep` seconds, the older half in
  // a separate file beside it (timeline_before()).
  double keep = 0;
  // Record only from the start of step first_step until the start of step end_step. -1: everything.
  int64_t first_step = -1, end_step = -1;
  bool clock_of_rank0 = true;         // This host is rank 0's, so the clock is the same.
  std::function<void(ObserverMessage)> say;      // Sends a message, called from within events; needed if the clock differs.
  LogSink log;                        // Receives a warning when writing fails; called on the timeline's thread.
  size_t most_bytes = 16u << 20;      // Maximum size of unwritten events.
  double between_writes = 0.1;        // Seconds between writes to the file.
};

// Return the path of the older half: "a/b.json" -> "a/b.before.json".
std::string timeline_before(const std::string& path);

class Timeline final : public Observer {
 public:
  // Open the file and start the thread. On failure return an error with a full sentence and set `error` to errno.
  static Status start(TimelineOptions options, std::shared_ptr<Timeline>* out, int* error);
  ~Timeline() override;

  // Stop recording and write all events to the file; waits for the disk. Idempotent. Callable from any thread.
  void close();
  // The program starts a step. Until this is called, each round of a schedule counts as a step, from 0. Callable from
  // any thread.
  void step(int64_t number);
  // Number of dropped events. Callable from any thread.
  uint64_t lost() const;
  // Why writing has failed, or ok.
  Status status() const;

  bool wants_submission_times() const override { return true; }
  void requested(std::span<const Request>) override;
  void noticed(int from, std::span<const Request>) override;
  void agreed(std::span<const Response>) override;
  void started(const Execution&) override;
  void entered(const Execution&, Phase) override;
  void finished(const Execution&, const Status&) override;
  void failed(const Response&) override;
  void schedule_begun(const Schedule&) override;
  void bucket_done(const Schedule::Bucket&) override;
  void schedule_ended(const Schedule&, uint64_t) override;
  void heard(int from, uint32_t topic, std::string_view body) override;
  void awake() override;
  // Also called on other threads that know of the end; the first call counts.
  void ended(const Status&) override;

 private:
  enum class What : uint8_t {
    ready,
    agreed,
    failed,
    started,
    entered,
    finished,
    schedule_begun,
    round,
    schedule_ended,
    step,
    cycle,
    paused,
    clock,
    lost,
    ended
  };
  struct Begun {
    uint64_t number, bytes, schedule;
    std::string algorithm;
    std::vector<uint64_t> submitted;  // submission times in ticks
  };
  struct Event {
    explicit Event(What w) : what(w) {}
    What what;
    bool good = true;
    Phase phase{};
    uint64_t at = ticks();
    int64_t number = 0, more = 0;
    TimelineTensorsPtr tensors;
    std::unique_ptr<Begun> begun;
    std::string text;
  };
  Timeline(TimelineOptions options, std::unique_ptr<TimelineFile> file);
  void push(Event event, size_t more_bytes = 0);
  TimelineTensorsPtr tensors_of(const Response& response);
  void look_at_clock();
  bool taking() const { return taking_.load(std::memory_order_relaxed); }
  void begin_step(int64_t number);
  void run();
  void write(std::vector<Event>& events);
  void put_down(Event& event, const TickScale::Line& line, std::string* text);
  void append(std::string* text);
  void begin_anew();

  const TimelineOptions options_;
  const TickScale scale_;
  const uint64_t began_ = ticks();

  std::atomic<bool> taking_, told_steps_{false}, told_end_{false};

  // ---- used by the driver -------------------------------------------------------------------------------------------
  // Responses that were executed. Those of a schedule keep their addresses until it ends; the addresses of others may
  // be reused.
  struct Seen {
    TimelineTensorsPtr tensors;
    bool stays = false;
  };
  std::unordered_map<const Response*, Seen> seen_;
  TimelineTensorsPtr current_;
  uint64_t schedule_ = 0, rounds_ = 0, all_rounds_ = 0;
  const Response* first_ = nullptr;  // first response of the schedule
  ClockOffset offset_;
  uint64_t looked_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Event> waiting_;
  size_t waiting_bytes_ = 0;
  uint64_t lost_ = 0, told_lost_ = 0;
  bool closing_ = false, hurry_ = false;
  Status status_;

  // ---- used by the thread -------------------------------------------------------------------------------------------
  TimelineText text_;
  std::unique_ptr<TimelineFile> file_;
  Clock::time_point file_began_ = Clock::now();
  ClockOffset::Known clock_{0, 0};
  bool clock_known_ = false;

  std::mutex close_mutex_;
  const long process_;
  std::unique_ptr<std::thread> thread_;
};

}  // namespace hvd
