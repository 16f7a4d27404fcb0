// Parts shared by the NCCL paths: memory on the GPU, the communicators of process sets, and the list of launched
// operations.
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/backend.h"
#include "base/deadline.h"
#include "base/log.h"
#include "devices/device.h"
#include "engine/device/completion.h"
#include "engine/device/compute.h"
#include "engine/options.h"
#include "nccl/communicator.h"

namespace hvd {

class GpuMemory : public std::enable_shared_from_this<GpuMemory> {
 public:
  // `log` receives one warning when the device runs out of memory.
  explicit GpuMemory(std::shared_ptr<Device> device, LogSink log = {}) : device_(std::move(device)), log_(std::move(log)) {}
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;

  class Block {
   public:
    Block(std::shared_ptr<GpuMemory> pool, std::byte* data, size_t bytes, bool pinned)
        : pool_(std::move(pool)), data_(data), bytes_(bytes), pinned_(pinned) {}
    ~Block() { pool_->give_back(data_, bytes_, pinned_); }
    Block(const Block&) = delete;
    std::byte* data() const { return data_; }

   private:
    const std::shared_ptr<GpuMemory> pool_;
    std::byte* const data_;
    const size_t bytes_;  // bytes of the block's size class
    const bool pinned_;
  };

  // Take a block of at least `bytes` bytes, with undefined contents. Release it only when nothing uses it any more, or
  // when only the stream uses it on which the next user will run.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  size_t pinned() const { return pinned_; }  // bytes of pinned host memory, whether in use or free

 private:
  using Free = std::map<size_t, std::vector<std::byte*>>;  // free blocks, keyed by size
  std::byte* take_free(size_t most, size_t* size, bool* is_pinned);
  void give_back(std::byte* data, size_t bytes, bool pinned);
  Status pin(size_t bytes, std::byte** data);

  const std::shared_ptr<Device> device_;
  const LogSink log_;
  bool warned_ = false;
  std::mutex mutex_;  // needed because blocks are returned from any thread
  Free free_, free_pinned_;
  size_t pinned_ = 0;
};

// NCCL communicators of process sets: decides whether a set can have one, creates it, and ends it.
//
// A set starts without a decision. Its ranks first exchange what each has: a GPU, and NCCL. If one rank lacks
// something, the set permanently uses the host. Otherwise they create the communicator, and exchange who is ready. Once
// all are ready the set uses NCCL; after a timeout it permanently uses the host.
//
// The ranks of a set decide together, for each response, with host collectives. They process the same responses in the
// same order, so their messages match. Once everything is decided, no more messages are sent.
//
// This class is used only by the thread that drives the engine.

// Properties shared by all members of a set.
struct NcclSet {
  std::shared_ptr<nccl::Communicator> communicator;
  int version = 0;     // NCCL version.
  int capability = 0;  // Minimum compute capability of the members' GPUs.
  bool kernels = false;  // True if our own kernels can be launched.
};

// State shared by all communicators of a rank. Kernels of different communicators must run in the same order on all
// ranks.
struct NcclCommon {
  Device::Stream stream = nullptr;  // Stream for the work of all communicators.
  // The first communicator while it is being created. Only this one may be warmed up.
  std::shared_ptr<nccl::Communicator> first;
  bool told_of_sharing = false;  // true once a warning was logged that ranks share a GPU
};

class NcclSets {
 public:
  NcclSets(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common)
      : options_(options), host_(host), log_(std::move(log)), common_(common) {}

  // Return the communicator of the set `id`, whose comm is `comm`, or null if some member does not have it yet or never
  // will. All members call this for the same responses in the same order. `device` is this rank's device, or null if it
  // has none yet. An error means that the job is over.
  Status find(uint32_t id, Comm& comm, const std::shared_ptr<Device>& device, const NcclSet** out);

  // True if find() will never return a communicator for the set. The answer is equal on all members.
  bool gives_up(uint32_t id) const;

  // Return the stream for the work of all communicators. Null before the first communicator exists.
  Device::Stream stream() const { return common_->stream; }
  GpuMemory& memory() const { return *memory_; }
  Compute& compute() const { return *compute_; }
  // Return an asynchronous NCCL error of any set, or ok.
  Status async_error() const;

  // Forget a set that was created or removed. Its communicator is destroyed on a separate thread.
  void forget(uint32_t id);
  // End all communicators: destroy them if `why` is ok, otherwise abort them. Communicators that are already being
  // destroyed are aborted too, because destruction may wait for a lost rank.
  void end(const Status& why);
  // Wait, some seconds at most, until the communicators have ended. Then free their memory, or leak it if one did not
  // end.
  void await_end();

 private:
  enum class State : uint8_t { unasked, making, nccl, host };
  struct Set : NcclSet {
    State state = State::unasked;
    Clock::time_point begun;  // Start of the communicator's creation.
    uint64_t waited = 0;      // Number of responses since the start of the creation, equal on all ranks.
    bool warned = false;
  };
  struct Record;
  struct Leaving {
    std::vector<std::shared_ptr<nccl::Communicator>> communicators;
    std::shared_ptr<nccl::Ending> ending;
    bool aborted = false;
    bool stuck() const { return !ending->over() || ending->leaked(); }
  };

  Record record();
  Status ask(Set* set, Comm& comm);
  std::string why_not(const Comm& comm, const std::vector<Record>& all) const;
  void warn_of_sharing(const Comm& comm, const std::vector<Record>& all);
  Status make(Set* set, Comm& comm, bool warm_up);
  Status prepare(const Comm& comm, bool warm_up, nccl::UniqueId* id, nccl::WarmUp* first);
  Status hear_whether_made(uint32_t id, Set* set, Comm& comm);
  void warn(uint32_t id, Set* set, const Comm& comm, const std::vector<std::byte>& made);
  void abandon(Set* set, const Status& why);
  void destroy(std::vector<std::shared_ptr<nccl::Communicator>> communicators);
  void abort(std::vector<std::shared_ptr<nccl::Communicator>> communicators, const Status& why);
  Status say(Comm& comm, const void* mine, size_t bytes, std::vector<std::byte>* all);
  void open();
  void give_up(Set* set, const std::string& why);

  const NcclOptions options_;
  Backend* const host_;
  const LogSink log_;
  std::shared_ptr<Device> device_;
  const nccl::Library* library_ = nullptr;
  std::string why_not_;  // reason why there is no NCCL library; empty if there is one
  bool looked_ = false;
  NcclCommon* const common_;
  std::shared_ptr<GpuMemory> memory_;
  std::unique_ptr<Compute> compute_;
  Status loaded_;  // Result of loading the kernels.
  std::vector<std::shared_ptr<GpuMemory::Block>> warmed_;  // Memory used by the warm-up of communicators.
  std::map<uint32_t, Set> sets_;
  std::vector<Leaving> leaving_;  // communicators that are shutting down; some may already have ended
};

// NCCL operations that were launched and may be unfinished. They are polled at intervals, because NCCL errors raise no
// wakeup.
class LaunchedOperations {
 public:
  // Add an operation. `what` describes it in messages.
  void add(std::shared_ptr<const Completion> completion, std::string what);
  bool empty() const { return all_.empty(); }

  // Return the interval in seconds between calls of look(). An error of look() is the error of an operation, or an
  // asynchronous NCCL error in one of the sets.
  static double resting_seconds() { return kLook; }
  Status look(const NcclSets& sets);

  // Mark unfinished operations as failed at the end of the job, whatever state their events have. Call this before NCCL
  // is aborted. `why` is the reason of the end.
  void fail(const Status& why);
  void clear() { all_.clear(); }

 private:
  static constexpr double kLook = 3e-3;
  struct One {
    std::shared_ptr<const Completion> completion;
    std::string what;
  };
  Status sweep();

  std::deque<One> all_;  // operations in the order of their launch; some may be done
  Clock::time_point next_look_{};
};

}  // namespace hvd
