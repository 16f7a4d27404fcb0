// What the NCCL paths share: memory on the GPU, communicators of process sets, operations that were launched.
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
  // `log`: receives one warning when the device runs out of memory.
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
    const size_t bytes_;  // bytes of its size class
    const bool pinned_;
  };

  // Take at least `bytes` bytes, contents undefined. Release the block only when nothing uses it any more, or only the
  // stream on which the next user will run.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  size_t pinned() const { return pinned_; }  // bytes of pinned host memory, in use or not

 private:
  using Free = std::map<size_t, std::vector<std::byte*>>;  // free blocks by size
  std::byte* take_free(size_t most, size_t* size, bool* is_pinned);
  void give_back(std::byte* data, size_t bytes, bool pinned);
  Status pin(size_t bytes, std::byte** data);

  const std::shared_ptr<Device> device_;
  const LogSink log_;
  bool warned_ = false;
  std::mutex mutex_;  // blocks are returned from any thread
  Free free_, free_pinned_;
  size_t pinned_ = 0;
};

// NCCL communicators of process sets: whether one is possible, its creation, its end.
//
//   unasked ---- exchange what each rank has: GPU, NCCL ----> making ---- exchange who is ready ----> by NCCL
//                                |                            |
//                                +------ a rank cannot -------+---- timeout ----------------------> by the host, permanently
//
// Ranks decide together, for each response, by host collectives. They process the same responses in the same order, so
// their messages match. Once everything is decided, no messages are sent.
//
// Used only by the thread that drives the engine.

// Properties shared by all members of a set.
struct NcclSet {
  std::shared_ptr<nccl::Communicator> communicator;
  int version = 0;     // NCCL version
  int capability = 0;  // minimum compute capability of their GPUs
  bool kernels = false;  // our own kernels can be launched
};

// State shared by all communicators of a rank: kernels of two of them must run in one order on all ranks.
struct NcclCommon {
  Device::Stream stream = nullptr;  // stream for the work of all communicators
  // The first communicator, the only one that may be warmed up, during its creation.
  std::shared_ptr<nccl::Communicator> first;
  bool told_of_sharing = false;  // a warning was logged that ranks share a GPU
};

class NcclSets {
 public:
  NcclSets(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common)
      : options_(options), host_(host), log_(std::move(log)), common_(common) {}

  // Return the communicator of the set, which is `comm`, if all members have it; null if not yet, or never. All members
  // ask for the same responses in the same order. `device`: this rank's; null if it has none yet. An error means that
  // the job is over.
  Status find(uint32_t id, Comm& comm, const std::shared_ptr<Device>& device, const NcclSet** out);

  // True if find() will never return one. Equal on all members.
  bool gives_up(uint32_t id) const;

  // Stream of all their work. Null before the first communicator exists.
  Device::Stream stream() const { return common_->stream; }
  GpuMemory& memory() const { return *memory_; }
  Compute& compute() const { return *compute_; }
  // Asynchronous NCCL error in any set.
  Status async_error() const;

  // The set was created or removed; its communicator is destroyed on a separate thread.
  void forget(uint32_t id);
  // End all communicators: destroy them if `why` is ok; otherwise abort them, including those being destroyed, which
  // may wait for a lost rank.
  void end(const Status& why);
  // Wait until they have ended, some seconds at most. Then free their memory, or leak it if something did not end.
  void await_end();

 private:
  enum class State : uint8_t { unasked, making, nccl, host };
  struct Set : NcclSet {
    State state = State::unasked;
    Clock::time_point begun;  // start of the communicator's creation
    uint64_t waited = 0;      // responses since the start of the creation, equal on all ranks
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
  std::string why_not_;  // why there is no library; empty if there is one
  bool looked_ = false;
  NcclCommon* const common_;
  std::shared_ptr<GpuMemory> memory_;
  std::unique_ptr<Compute> compute_;
  Status loaded_;  // result of loading the kernels
  std::vector<std::shared_ptr<GpuMemory::Block>> warmed_;  // memory for the warm-up of communicators
  std::map<uint32_t, Set> sets_;
  std::vector<Leaving> leaving_;  // communicators that are shutting down; some may have ended
};

// NCCL operations that were launched and may be unfinished. Polled at intervals, because NCCL errors raise no wakeup.
class LaunchedOperations {
 public:
  // `what`: description for messages.
  void add(std::shared_ptr<const Completion> completion, std::string what);
  bool empty() const { return all_.empty(); }

  // Interval in seconds between calls of look(). An error is that of an operation, or an asynchronous NCCL error in one
  // of the sets.
  static double resting_seconds() { return kLook; }
  Status look(const NcclSets& sets);

  // End of the job because of `why`: mark unfinished operations as failed, whatever their events say. Call before
  // aborting NCCL.
  void fail(const Status& why);
  void clear() { all_.clear(); }

 private:
  static constexpr double kLook = 3e-3;
  struct One {
    std::shared_ptr<const Completion> completion;
    std::string what;
  };
  Status sweep();

  std::deque<One> all_;  // operations in launch order; some may be done
  Clock::time_point next_look_{};
};

}  // namespace hvd
