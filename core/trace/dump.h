// Dump of the flight recorder to a file, one JSON object per line, when the job ends with an error, on a signal, or on
// request. It works even if Python is not running.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "engine/observer.h"
#include "trace/recorder.h"

namespace hvd {

// Append an entry as JSON: {"number", "what", "begin", "end", "name", "kind", "dtype", "op", "set", "face", "shape",
// "dimensions", "count", "bytes", "schedule", "position", "guarded"}. Times are in nanoseconds of the host's monotonic
// clock.
void append_entry(std::string* out, const FlightRecorder::Entry& entry, const TickScale::Line& line);

enum class FolderKind {
  // Folder chosen by the user, possibly shared or reached through symbolic links.
  given,
  // Folder created for this job's reports. If another user can write to it, a new folder next to it is used.
  own,
};

// Create `folder` and its missing parents, accessible only to this user, and replace the file `name` in it. If `path`
// is not null, it receives the path of the file, even on failure. An error names the path and the cause.
Status write_into(const std::string& folder, FolderKind kind, const std::string& name, std::string_view text, std::string* path = nullptr);

class Dumper final : public Observer {
 public:
  // `folder` is the default folder for dumps, and `label` names this rank in error messages.
  Dumper(std::shared_ptr<FlightRecorder> recorder, int rank, int size, std::string label, std::string folder);

  // Write recorder.rankN.jsonl to `folder` (the default folder if empty). `path` receives the path of the file. The
  // first line gives the same moment on two clocks: {"horovod": "recorder", "version": 1, "rank", "size", "label",
  // "pid", "why", "monotonic_ns", "unix_ns"}
  Status dump(const std::string& folder, std::string_view why, std::string* path);
  const std::string& folder() const { return folder_; }
  int rank() const { return rank_; }

  // Write a dump if the job ended with an error, but not if a rank left deliberately.
  void ended(const Status& why) override;

 private:
  const std::shared_ptr<FlightRecorder> recorder_;
  const int rank_, size_;
  const std::string label_, folder_;
};

// Signal watch that calls a function on a separate thread whenever a signal arrives. The signal handler only wakes that
// thread. A process can have only one watch.
class SignalWatch {
 public:
  // Return null if the program already handles or ignores the signal, or if another SignalWatch exists.
  static std::unique_ptr<SignalWatch> start(int signal, std::function<void()> call);
  ~SignalWatch();
  // In a forked child, restore the signal's previous action.
  void abandon_in_child();

 private:
  SignalWatch(int signal, int event, std::function<void()> call);
  void run();
  void give_back();

  const int signal_, event_, process_;
  const std::function<void()> call_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace hvd
