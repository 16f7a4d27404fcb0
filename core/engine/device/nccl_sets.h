// Components shared by the NCCL paths: GPU memory, the communicators of process sets, and the list of launched
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
    // Size of the memory block in bytes, rounded up to its size class.
    const size_t bytes_;
    const bool pinned_;
  };

  // Take a block of at least `bytes` bytes with undefined contents. Release it only once the device no longer uses it, or if its next user
  // is on the same stream.
  Status take(size_t bytes, std::shared_ptr<Block>* out);
  // Return the number of bytes of pinned host memory, both used and free.
  size_t pinned() const { return pinned_; }

 private:
  // Unused memory blocks, keyed by their size in bytes.
  using Free = std::map<size_t, std::vector<std::byte*>>;
  std::byte* take_free(size_t most, size_t* size, bool* is_pinned);
  void give_back(std::byte* data, size_t bytes, bool pinned);
  Status pin(size_t bytes, std::byte** data);

  const std::shared_ptr<Device> device_;
  const LogSink log_;
  bool warned_ = false;
  // Protects the free blocks, because any thread can return blocks.
  std::mutex mutex_;
  Free free_, free_pinned_;
  size_t pinned_ = 0;
};

// NCCL communicators of process sets. This class decides whether a set can have a communicator, creates it, and shuts
// it down.
//
// A process set starts undecided. First, its ranks tell each other whether they have a GPU and NCCL. If any rank lacks
// them, the set permanently uses the host. If all have them, the ranks create the communicator and tell each other when
// it is ready. Once it is ready on all ranks, the set uses NCCL. After a timeout, the set permanently uses the host.
//
// The ranks of a set exchange these messages with host collectives, at most once per response. They process the same
// responses in the same order, so their messages match. Once the set uses NCCL or the host permanently, the ranks send
// no more messages.
//
// Not thread-safe; used only by the thread that runs the engine's progress loop.

// Properties of a process set, equal on all its ranks.
struct NcclSet {
  std::shared_ptr<nccl::Communicator> communicator;
  int version = 0;
  // Lowest compute capability among the ranks' GPUs.
  int capability = 0;
  // True if the engine can launch its own kernels.
  bool kernels = false;
};

// State shared by all communicators of a rank. Kernels of different communicators must run in the same order on all
// ranks.
struct NcclCommon {
  // Stream for the work of all communicators.
  Device::Stream stream = nullptr;
  // First communicator of this rank, the only one with a warm-up. Warm-up kernels could deadlock with kernels of other communicators.
  std::shared_ptr<nccl::Communicator> first;
  // True once this rank has logged a warning about ranks that share a GPU.
  bool warned_of_sharing = false;
};

class NcclSets {
 public:
  NcclSets(const NcclOptions& options, Backend* host, LogSink log, NcclCommon* common)
      : options_(options), host_(host), log_(std::move(log)), common_(common) {}

  // Return the NCCL communicator of process set `id`. `comm` is the set's host communicator. Return null if any rank of
  // the set does not have the NCCL communicator yet or never will. All ranks of the set must call this for the same
  // responses in the same order. `device` is this rank's device, or null if it has none yet. An error ends the job.
  Status find(uint32_t id, Comm& comm, const std::shared_ptr<Device>& device, const NcclSet** out);

  // True if find() will never return a communicator for the set. All ranks of the set get the same result.
  bool gives_up(uint32_t id) const;

  // Return the stream that all communicators share, or null before the first communicator exists.
  Device::Stream stream() const { return common_->stream; }
  GpuMemory& memory() const { return *memory_; }
  Compute& compute() const { return *compute_; }
  // Return an asynchronous NCCL error of any process set, or ok.
  Status async_error() const;

  // Delete the state of a process set that was created or removed. Its communicator is destroyed on a separate thread.
  void forget(uint32_t id);
  // Shut down all communicators: destroy them if `why` is ok, or abort them if it is an error. Communicators that are
  // already being destroyed are aborted too, because their destruction can wait for a lost rank.
  void end(const Status& why);
  // Wait a few seconds for the communicators to shut down. Then free their memory, or leak it if one did not shut down.
  void await_end();

 private:
  enum class State : uint8_t { unasked, making, nccl, host };
  struct Set : NcclSet {
    State state = State::unasked;
    // Time at which the creation of the communicator started.
    Clock::time_point begun;
    // Number of responses of this set since the creation of its communicator started. Equal on all ranks.
    uint64_t waited = 0;
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
  Status share(Comm& comm, const void* own, size_t bytes, std::vector<std::byte>* all);
  void open();
  void give_up(Set* set, const std::string& why);

  const NcclOptions options_;
  Backend* const host_;
  const LogSink log_;
  std::shared_ptr<Device> device_;
  const nccl::Library* library_ = nullptr;
  // Reason why no NCCL library was loaded. Empty if one was loaded.
  std::string why_not_;
  bool looked_ = false;
  NcclCommon* const common_;
  std::shared_ptr<GpuMemory> memory_;
  std::unique_ptr<Compute> compute_;
  // Result of loading the engine's kernels on the device.
  Status loaded_;
  // Memory used to warm up communicators.
  std::vector<std::shared_ptr<GpuMemory::Block>> warmed_;
  std::map<uint32_t, Set> sets_;
  // Communicators that are shutting down or have ended.
  std::vector<Leaving> leaving_;
};

// Launched NCCL operations that might be unfinished. They must be polled, because NCCL errors wake no thread.
class LaunchedOperations {
 public:
  // Add a launched operation. `what` describes the operation in error messages.
  void add(std::shared_ptr<const Completion> completion, std::string what);
  bool empty() const { return all_.empty(); }

  // Return the interval in seconds for calls of look(). look() returns the error of an operation, or an asynchronous NCCL error.
  static double resting_seconds() { return kLook; }
  Status look(const NcclSets& sets);

  // Mark unfinished operations as failed with `why`, the error that ended the job, whatever their events say. Call this before NCCL is
  // aborted.
  void fail(const Status& why);
  void clear() { all_.clear(); }

 private:
  static constexpr double kLook = 3e-3;
  struct One {
    std::shared_ptr<const Completion> completion;
    std::string what;
  };
  Status sweep();

  // Unfinished operations in the order of their launch.
  std::deque<One> all_;
  Clock::time_point next_look_{};
};

}  // namespace hvd
