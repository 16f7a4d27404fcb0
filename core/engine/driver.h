// Driver: one turn of the engine's progress loop. The thread that holds the progress lock (the engine's own thread or a
// waiting caller) calls step(), so turns never overlap. A turn takes submissions, sends requests, handles messages and
// executes agreed operations, in this order.
//
// A driver has two states:
//   - While negotiating, operations go from to_request_ to pending_, and responses from order_ to execute(). adopt()
//     starts a schedule when its turn in the common order has come.
//   - While following a schedule, run_schedule() starts a bucket when all ranks are ready for it (schedule_sync_).
//     Ranks that are alone on their nodes find this out by a vote, which may carry the data (readiness_vote_).
//     leave_schedule() returns to negotiation when all ranks know the schedule's last position and have reached it.
//
// Each state can end only once. It ends in fail() when a rank is lost, an operation cannot be executed, or all
// operations that a leaving rank promised are done (shutdown_state_). It ends in leave() when this program shuts down.
// After that, a turn only relays the other ranks' goodbyes.
//
// driver.cc contains turns, requests and execution; driver_messages.cc the received messages; driver_schedule.cc and
// driver_vote.cc the schedules; driver_devices.cc device tensors; driver_end.cc the end of the job; driver_sleep.cc the
// wakeup conditions.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agree/coordinator.h"
#include "agree/recent.h"
#include "agree/stall.h"
#include "engine/control.h"
#include "engine/device/accelerator.h"
#include "engine/device/hierarchical_nccl_path.h"
#include "engine/device/host_staged_path.h"
#include "engine/device/ipc_path.h"
#include "engine/device/nccl_path.h"
#include "engine/execute.h"
#include "engine/observers.h"
#include "engine/protocol.h"
#include "engine/schedule_sync.h"
#include "engine/shutdown_state.h"
#include "engine/submissions.h"

namespace hvd {

class Driver {
 public:
  Driver(EngineOptions& options, Submissions* submissions, Observers* observers, MessageBus* message_bus,
         const AbortRequest* abort_request);

  // Run one turn. `flush` means that a caller waits, so requests are sent at once. Return true if something progressed,
  // so that the caller should call again. A turn sleeps only inside collectives.
  bool step(bool flush);

  // Called before the thread sleeps. They return the events that must wake it, the longest sleep in seconds, and
  // whether there is work after all.
  SleepState resting_sleep_state() const;
  double resting_seconds() const;
  bool work_waiting() const;
  // True if control messages wait for room in a socket's buffer.
  bool unsent() const { return control_.unsent(); }
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;
  // True while a guarded operation is in flight. Then only a message from a peer can make progress.
  bool awaits_peers() const { return !shutdown_state_.over() && readiness_vote_.under_way(); }

  // Leave the job: send a goodbye with `reason`, fail pending operations, and wait briefly until the neighbours have
  // received it.
  void leave(const std::string& reason);
  // Request a stop from another thread. A collective in flight then gives up.
  void request_stop() { stopping_.store(true, std::memory_order_seq_cst); }

  // Change the fusion threshold and the size thresholds of all ranks from another thread, on rank 0 only. All ranks
  // leave a running schedule at the same position. The fusion threshold applies to the next decisions and schedules,
  // the tuning from the next schedule on.
  void retune(size_t fusion_threshold, const Tuning& tuning);

  Connections& connections() { return connections_; }
  const Control& control() const { return control_; }
  const Coordinator* coordinator() const { return coordinator_.get(); }  // the coordinator of rank 0; null on other ranks

 private:
  bool turn(bool flush);
  Status carry_out(const Response& response, const std::vector<Operation*>& ops);
  Status carry_out(const Schedule::Bucket& bucket, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep);
  Status hook();
  void hear_urgent();
  bool take_submissions();
  bool send_requests(bool flush);
  bool hear();
  void send_observer_messages();
  void look_for_stalls();
  void on_frame(const Frame& frame);
  // Handle one message. Return false if the sender is not allowed to send it to this rank.
  bool on(int from, ReadyRequests& message);
  bool on(int from, Decisions& message);
  bool on(int from, ReadyUpTo& message);
  bool on(int from, GoUpTo& message);
  bool on(int from, Revoke& message);
  bool on(int from, Revoked& message);
  bool on(int from, Settled& message);
  bool on(int from, StalledKeys& message);
  bool on(int from, ObserverMessageUp& message);
  bool on(int from, ObserverMessageDown& message);
  bool on(int from, Goodbye& message);
  bool on(int from, Abort& message);
  void decide();
  bool execute_agreed();
  void execute(Response response);
  Status check(const Response& response, const std::vector<Operation*>& ops);
  void adopt(const Response& response);
  void apply_retuning();
  bool run_schedule();
  bool run_bucket();
  enum class Vote { idle, decided, ended };
  Vote vote(const Submissions::Progress& progress, bool* moved);
  void finish_guarded();
  void leave_schedule(uint64_t final_position);
  void finish(const std::vector<Operation*>& ops, const Status& status);
  Status launch(const Response& response, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep);
  enum class DevicePath : uint8_t { nccl, ipc, hierarchical_nccl, host_staged };
  Status choose_path(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, DevicePath* path);
  Status start_on_path(const Response& response, Comm& comm, std::vector<OperationPtr> mine);
  bool look_at_devices();
  bool any_in_flight() const { return nccl_path_.in_flight() || hierarchical_path_.in_flight() || ipc_path_.in_flight(); }
  bool look_at_launched();
  void drain_devices();
  void end_devices(const Status& why);
  double resting_seconds_of_the_host() const;
  void apply_set_change(const Response& response, Operation* op);
  std::vector<Operation*> find(const Response& response, std::vector<OperationPtr>* keep);
  void lost(int rank, const Status& why);
  // End the job if something outside the engine has requested it (AbortRequest).
  void check_abort_request();
  // True if a rank has left and all operations that it takes part in are done.
  bool past_goodbye() const;
  bool all_take_part() const;
  // True if this rank has no entry in the running schedule. While that schedule runs, this rank does not count its
  // operations.
  bool has_no_part() const;
  void watch();
  // Return `end`, the error of a stall timeout. If a report on what the ranks were doing was written, its location is
  // appended.
  Status with_report(const Status& end) const;
  // True while the end of a stalled job waits for a report on what the ranks are doing. The first call asks for the
  // report; it is awaited for a few seconds at most.
  bool awaits_report();
  bool anything_waits() const;
  void collective_failed(const Status& status);
  std::vector<OperationPtr> take_unfinished();
  void fail(Status why, bool tell);
  double now() const;
  const std::string& label(int rank) const { return labels_[rank]; }

  const int rank_;
  const std::vector<std::string> labels_;
  const Settings settings_;
  LogSink log_;
  Submissions* submissions_;
  Observers* observers_;
  MessageBus* message_bus_;
  const AbortRequest* abort_request_;
  Control control_;
  Connections connections_;
  std::unique_ptr<Backend> backend_;
  Executor executor_;
  HostStagedPath host_staged_path_;
  NcclCommon nccl_;
  NcclPath nccl_path_;
  HierarchicalNcclPath hierarchical_path_;
  const bool hosts_first_;  // true to prefer hierarchical_path_ even where NCCL could connect the hosts
  IpcPath ipc_path_;
  SingleRankPath single_rank_path_;
  // Operations that were launched, or failed to launch, and whose callers are not yet notified. An entry in
  // `unlaunched_` ends the job.
  std::vector<HostStagedPath::Done> launched_, unlaunched_;
  std::unique_ptr<Coordinator> coordinator_;  // only rank 0 has a coordinator
  StallCheck stall_check_;
  LocalStallCheck local_stall_check_;
  Clock::time_point start_ = Clock::now();
  double last_divergence_check_ = 0;
  double report_asked_ = 0;
  double last_executed_ = 0;  // seconds, updated only while this rank has joined

  std::vector<OperationPtr> to_request_;
  size_t to_request_bytes_ = 0;
  std::unordered_map<std::string, OperationPtr> pending_;  // Operations requested from rank 0, keyed by key_of().
  std::map<uint8_t, OperationPtr> joins_;                  // Joins in flight, keyed by frontend.
  std::deque<Response> order_;
  uint64_t epoch_ = 0;
  uint64_t executed_ = 0;  // number of operations of the common order that this rank has executed
  std::unique_ptr<ScheduleSync> schedule_sync_;
  ReadinessVote readiness_vote_;
  RecentRequests recent_;
  std::optional<Revoked> early_revoked_;  // Revoked message that arrived before this rank adopted its schedule

  std::string busy_;                             // Description of the operation being executed, for messages.
  const Schedule::Bucket* in_bucket_ = nullptr;  // The bucket being executed, for messages.
  ShutdownState shutdown_state_;
  std::atomic<bool> stopping_{false};
  struct Retuning {
    size_t fusion_threshold;
    Tuning tuning;
  };
  std::atomic<bool> retuning_requested_{false};
  std::mutex retuning_mutex_;
  std::optional<Retuning> retuning_;  // Values that retune() has requested and that are not applied yet.
  uint64_t turns_ = 0;
  bool timing_ = false;             // True if this turn is timed.
  uint64_t in_collectives_ = 0;     // CPU time that this turn has spent in collectives, in ns.
};

}  // namespace hvd
