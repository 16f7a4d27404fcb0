// Writes what the flight recorder has to a file, one JSON object a line: when the job ends by an error, on a signal, when the program asks.
// Nothing here needs Python to run.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/status.h"
#include "engine/observer.h"
#include "trace/recorder.h"

namespace hvd {

// {"number", "what", "begin", "end", "name", "kind", "dtype", "op", "set", "face", "shape", "dimensions", "count", "bytes", "schedule",
//  "position", "guarded"}; times in ns of the host's monotonic clock.
void append_entry(std::string* out, const FlightRecorder::Entry& entry, const TickScale::Line& line);

enum class FolderKind {
  given,  // by the user: may be shared with others, links lead where they lead
  own,  // of this job's reports: where it is not this user's alone, another beside it is made and used
};

// Makes `folder` and those above it that are missing, for this user alone, and replaces the file `name` in it. `path`, if not null: where
// the file is, whether it could be written or not. An error names the path and what is wrong.
Status write_into(const std::string& folder, FolderKind kind, const std::string& name, std::string_view text, std::string* path = nullptr);

class Dumper final : public Observer {
 public:
  // `folder`: where to when nobody says. `label`: how messages name this rank.
  Dumper(std::shared_ptr<FlightRecorder> recorder, int rank, int size, std::string label, std::string folder);

  // Writes recorder.rankN.jsonl to `folder`, "": the one given to the constructor; `path`: where it is. The first line is {"horovod":
  // "recorder", "version": 1, "rank", "size", "label", "pid", "why", "monotonic_ns", "unix_ns"}: one moment on both clocks.
  Status dump(const std::string& folder, std::string_view why, std::string* path);
  const std::string& folder() const { return folder_; }
  int rank() const { return rank_; }

  // By an error, not by a rank that leaves.
  void ended(const Status& why) override;

 private:
  const std::shared_ptr<FlightRecorder> recorder_;
  const int rank_, size_;
  const std::string label_, folder_;
};

// Calls a function, in a thread of its own, whenever a signal comes; nothing is done in the handler but to wake that thread. One at a time
// in a process.
class SignalWatch {
 public:
  // Null: the program has a handler of its own for it, ignores it, or somebody watches already.
  static std::unique_ptr<SignalWatch> start(int signal, std::function<void()> call);
  ~SignalWatch();
  // In a forked child: the signal does again what it did before.
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
