// Timeline: observer that writes the events of operations on this rank to a file for trace viewers. The driver records events in memory, in
// about 100 ns each. A separate thread converts them to text (timeline_text.h) and writes them to the file (timeline_file.h) ten times per
// second. The memory for unwritten events is limited; further events are dropped and counted.
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

struct TimelineOptions {
  std::string path;
  int rank = 0, size = 1;
  std::string host;
  bool mark_cycles = false;
  // Seconds of events to keep, or 0 for all. The last `keep` to 2 * `keep` seconds are then available, the older half in a separate file
  // (timeline_before()).
  double keep = 0;
  // Record from the start of step first_step to the start of step end_step. -1 means no limit.
  int64_t first_step = -1, end_step = -1;
  // True if this rank runs on the same host as rank 0, so that the two ranks have the same clock.
  bool clock_of_rank0 = true;
  // Function that sends a message to rank 0, called in the observer's event callbacks. Needed only to measure the offset from another
  // host's clock.
  std::function<void(ObserverMessage)> say;
  // Function that receives a warning when writing fails. Called on the timeline's thread.
  LogSink log;
  // Maximum size in bytes of the events waiting to be written.
  size_t most_bytes = 16u << 20;
  // Seconds between writes to the file.
  double between_writes = 0.1;
};

// Return the path of the file that holds the older half of the timeline, for example "a/b.before.json" for "a/b.json".
std::string timeline_before(const std::string& path);

class Timeline final : public Observer {
 public:
  // Open the file and start the thread. On failure, set `error` to errno and return an error whose message is a full
  // sentence.
  static Status start(TimelineOptions options, std::shared_ptr<Timeline>* out, int* error);
  ~Timeline() override;

  // Stop recording, write all events, and flush the file to disk. Can be called repeatedly and from any thread.
  void close();
  // Record that the program starts a step. Until the first call, each round of a schedule counts as a step, from 0 on. Callable from any
  // thread.
  void step(int64_t number);
  // Return the number of dropped events. Callable from any thread.
  uint64_t lost() const;
  // Return ok, or the reason why writing failed.
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
  void received(int from, uint32_t topic, std::string_view body) override;
  void awake() override;
  // Record the end of the job. Called by the driver, and by any thread that notices the end earlier. Only the first
  // call has an effect.
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
    // Submission time of each tensor, in ticks.
    std::vector<uint64_t> submitted;
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

  std::atomic<bool> taking_, explicit_steps_{false}, reported_end_{false};

  // ---- Members used by the driver -----------------------------------------------------------------------------------

  // Executed responses, keyed by their addresses. Addresses are stable (stays) for responses of a schedule until it ends. Other responses
  // can reuse an address.
  struct Seen {
    TimelineTensorsPtr tensors;
    bool stays = false;
  };
  std::unordered_map<const Response*, Seen> seen_;
  TimelineTensorsPtr current_;
  uint64_t schedule_ = 0, rounds_ = 0, all_rounds_ = 0;
  // First response of the running schedule, or null if none is running. It marks the start of a round.
  const Response* first_ = nullptr;
  ClockOffset offset_;
  uint64_t looked_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Event> waiting_;
  size_t waiting_bytes_ = 0;
  uint64_t lost_ = 0, reported_lost_ = 0;
  bool closing_ = false, hurry_ = false;
  Status status_;

  // ---- Members used by the writer thread ----------------------------------------------------------------------------
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
