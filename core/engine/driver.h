// The Driver runs the engine's progress loop; a turn is one iteration of the loop. The thread that holds the progress
// lock (the engine's own thread or a waiting caller) calls step(), so turns never overlap. In a turn, the driver takes
// new submissions, sends requests, handles messages and executes agreed operations, in this order.
//
// A driver has two states:
//   - While negotiating, operations move from to_request_ to pending_, and responses from order_ to execute(). adopt()
//     starts a schedule at its place in the order that all ranks share.
//   - While following a schedule, run_schedule() starts a bucket when all ranks are ready for it (schedule_sync_). If
//     each rank is alone on its node, the ranks determine this by a vote that can also carry the data
//     (readiness_vote_). leave_schedule() returns to negotiation when all ranks know the schedule's last position and
//     have reached it.
//
// The job ends only once, from either state. It ends in fail() when a rank is lost, an operation cannot be executed, or
// all operations in which a leaving rank still takes part are done (shutdown_state_). It ends in leave() when this
// program shuts down. After the end, the progress loop only relays the other ranks' goodbyes.
//
// The class is implemented in several files:
//   - driver.cc: the progress loop, requests and execution
//   - driver_messages.cc: the received messages
//   - driver_schedule.cc and driver_vote.cc: the schedules
//   - driver_devices.cc: operations on device tensors
//   - driver_end.cc: the end of the job
//   - driver_sleep.cc: the wakeup conditions
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

  // Run one turn of the progress loop. `flush` means that a caller is waiting, so requests are sent without delay.
  // Return true if there was any progress; the caller should then call step() again. A turn sleeps only inside
  // collectives.
  bool step(bool flush);

  // Return what the thread needs to know before a sleep: the events that must wake it, the maximum time in seconds, and true if there is
  // work to do now.
  SleepState resting_sleep_state() const;
  double resting_seconds() const;
  bool work_waiting() const;
  // True if unsent control messages are waiting for space in a socket's send buffer.
  bool unsent() const { return control_.unsent(); }
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;
  // True while a guarded operation is in flight. Only a message from a peer can advance it.
  bool awaits_peers() const { return !shutdown_state_.over() && readiness_vote_.under_way(); }

  // Leave the job: send a goodbye with `reason`, fail pending operations, and wait briefly until the neighbours have
  // received the goodbye.
  void leave(const std::string& reason);
  // Ask the thread that runs the progress loop to stop and to abandon any collective in flight. Callable from any
  // thread.
  void request_stop() { stopping_.store(true, std::memory_order_seq_cst); }

  // Change the fusion threshold and the size thresholds (`tuning`) of all ranks. Call this only on rank 0, from any thread. A running
  // schedule ends, at the same position on all ranks. The size thresholds apply from the next schedule on, the fusion threshold to all
  // later decisions.
  void retune(size_t fusion_threshold, const Tuning& tuning);

  Connections& connections() { return connections_; }
  const Control& control() const { return control_; }
  // Return the coordinator if this is rank 0, or null.
  const Coordinator* coordinator() const { return coordinator_.get(); }

 private:
  bool turn(bool flush);
  Status carry_out(const Response& response, const std::vector<Operation*>& ops);
  Status carry_out(const Schedule::Bucket& bucket, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep);
  Status hook();
  void hear_urgent();
  bool take_submissions();
  bool send_requests(bool flush);
  bool receive();
  void send_observer_messages();
  void look_for_stalls();
  void on_frame(const Frame& frame);
  // Handle one message. Return false if the sender may not send it to this rank.
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
  void stage_next(const Submissions::Progress& progress);
  bool run_bucket();
  enum class Vote { idle, decided, ended };
  Vote vote(const Submissions::Progress& progress, bool* moved);
  void finish_guarded();
  void leave_schedule(uint64_t final_position);
  void finish(const std::vector<Operation*>& ops, const Status& status);
  Status launch(const Response& response, const std::vector<Operation*>& ops, std::vector<OperationPtr>* keep);
  enum class DevicePath : uint8_t { nccl, ipc, hierarchical_nccl, host_staged };
  Status choose_path(const Response& response, Comm& comm, const std::shared_ptr<Device>& device, DevicePath* path);
  Status start_on_path(const Response& response, Comm& comm, std::vector<OperationPtr> own);
  bool look_at_devices();
  bool any_in_flight() const { return nccl_path_.in_flight() || hierarchical_path_.in_flight() || ipc_path_.in_flight(); }
  bool look_at_launched();
  void drain_devices();
  void end_devices(const Status& why);
  double resting_seconds_of_the_host() const;
  void apply_set_change(const Response& response, Operation* op);
  std::vector<Operation*> find(const Response& response, std::vector<OperationPtr>* keep);
  void lost(int rank, const Status& why);
  // End the job if the launcher, or other code outside the engine, has asked for it (AbortRequest).
  void check_abort_request();
  // True if some rank has left, and all operations in which it takes part are done.
  bool departure_complete() const;
  bool all_take_part() const;
  // True if no operation of the running schedule belongs to this rank, so that this rank does not count the schedule's operations.
  bool has_no_part() const;
  void watch();
  // Return the error `end` of a stall, with the path of the report on the ranks' activity, if one was written.
  Status with_report(const Status& end) const;
  // True while the end of a stalled job waits, for at most a few seconds, for a report on the ranks' activity. The first call requests the
  // report.
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
  // True to prefer the hierarchical path even if NCCL could connect the hosts.
  const bool hosts_first_;
  IpcPath ipc_path_;
  SingleRankPath single_rank_path_;
  // Device operations whose callers have not been notified yet, launched (launched_) or failed to launch (unlaunched_), which ends the job.
  std::vector<HostStagedPath::Done> launched_, unlaunched_;
  // Coordinator of rank 0; null on other ranks.
  std::unique_ptr<Coordinator> coordinator_;
  StallCheck stall_check_;
  LocalStallCheck local_stall_check_;
  Clock::time_point start_ = Clock::now();
  double last_divergence_check_ = 0;
  double report_asked_ = 0;
  // Time in seconds at which an operation was last executed. Updated only while this rank waits in join().
  double last_executed_ = 0;

  std::vector<OperationPtr> to_request_;
  size_t to_request_bytes_ = 0;
  // Operations that this rank has announced to rank 0 and for which it has no response yet, keyed by key_of().
  std::unordered_map<std::string, OperationPtr> pending_;
  // Joins in flight, keyed by frontend.
  std::map<uint8_t, OperationPtr> joins_;
  std::deque<Response> order_;
  uint64_t epoch_ = 0;
  // Number of operations that this rank has executed. All ranks execute operations in the same order.
  uint64_t executed_ = 0;
  std::unique_ptr<ScheduleSync> schedule_sync_;
  ReadinessVote readiness_vote_;
  RecentRequests recent_;
  // Message that ends a schedule, kept until this rank enters the schedule.
  std::optional<Revoked> early_revoked_;

  // For each bucket of the schedule, true if its data may be staged early, before all ranks are ready for it.
  std::vector<bool> may_stage_;
  // Group in which the next bucket's data are staged, or null.
  NodeGroup* staged_in_ = nullptr;
  // Operations of the bucket that is staged or voted on, kept to reuse the memory.
  std::vector<Operation*> operations_;

  // Description of the operation being executed, for error messages.
  std::string busy_;
  // Bucket of a schedule that is being executed, or null. Used in error messages.
  const Schedule::Bucket* in_bucket_ = nullptr;
  ShutdownState shutdown_state_;
  std::atomic<bool> stopping_{false};
  struct Retuning {
    size_t fusion_threshold;
    Tuning tuning;
  };
  std::atomic<bool> retuning_requested_{false};
  std::mutex retuning_mutex_;
  // Settings requested by retune() and not yet applied.
  std::optional<Retuning> retuning_;
  uint64_t turns_ = 0;
  // True if the CPU time of this turn is measured.
  bool timing_ = false;
  // Nanoseconds of CPU time that this turn has spent in collectives.
  uint64_t in_collectives_ = 0;
};

}  // namespace hvd
