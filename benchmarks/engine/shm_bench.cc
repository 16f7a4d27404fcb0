// Measures allreduce_shm between two processes, compared with the limit of the memory.
//
//   shm_bench [in-place] [staging MiB] [largest MiB] [seconds per size]
//
// Two processes, pinned to the first two CPUs that this process may use, sum float32 tensors. The bare loop does the same
// memory accesses (stage the other's half in chunks, add its own half, copy the other half back) with only two counters
// for synchronization. Both alternate in short turns, so that noise of the machine affects both. Prints median, 10th and
// 90th percentile in microseconds, and the bus bandwidth at the median.
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "collectives/collectives.h"

namespace {

using namespace hvd;

constexpr size_t kBareChunk = 256 << 10;

struct Options {
  bool in_place = false;
  size_t staging = 8 << 20, largest = 256 << 20;
  double seconds = 1.0;
};

// Shared memory of the two processes of the bare loop.
struct BareShared {
  struct alignas(64) Counter {
    std::atomic<uint64_t> value{0};
  } counter[2];
  alignas(64) std::byte staging[2][2][2 * kBareChunk];  // [process][chunk parity][staged data, then its result]
};

double now_us() { return std::chrono::duration<double, std::micro>(Clock::now().time_since_epoch()).count(); }

template <class T>
T* shared() {
  void* p = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    std::abort();
  }
  return static_cast<T*>(p);
}

void pin(int process) {
  cpu_set_t allowed, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed) && seen++ == process) CPU_SET(cpu, &one);
  }
  sched_setaffinity(0, sizeof one, &one);
}

class BareLoop {
 public:
  BareLoop(BareShared* shared, int me) : shared_(shared), me_(me) {}

  void run(const float* in, float* out, size_t n) {
    const size_t half = n / 2, mine = me_ ? half : 0, theirs = me_ ? 0 : half;
    const size_t my_count = me_ ? n - half : half, their_count = n - my_count, step = kBareChunk / sizeof(float);
    for (size_t at = 0, k = 0; at < std::max(my_count, their_count); at += step, ++k) {
      const size_t some = at < my_count ? std::min(step, my_count - at) : 0;
      const size_t others = at < their_count ? std::min(step, their_count - at) : 0;
      std::byte* stage = shared_->staging[me_][k & 1];
      const std::byte* peer = shared_->staging[1 - me_][k & 1];
      memcpy(stage, in + theirs + at, others * sizeof(float));
      meet();
      auto* result = reinterpret_cast<float*>(stage + kBareChunk);
      auto* contribution = reinterpret_cast<const float*>(peer);
      for (size_t i = 0; i < some; ++i) result[i] = in[mine + at + i] + contribution[i];
      memcpy(out + mine + at, result, some * sizeof(float));
      meet();
      memcpy(out + theirs + at, peer + kBareChunk, others * sizeof(float));
    }
  }

 private:
  void meet() {
    shared_->counter[me_].value.store(++stage_, std::memory_order_release);
    while (shared_->counter[1 - me_].value.load(std::memory_order_acquire) < stage_) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  }
  BareShared* shared_;
  int me_;
  uint64_t stage_ = 0;
};

struct Times {
  std::vector<double> us;
  double at(double quantile) {
    std::sort(us.begin(), us.end());
    return us[static_cast<size_t>(quantile * static_cast<double>(us.size() - 1))];
  }
};

// Takes samples of the time of `once`; for small data, a sample is the mean of several calls.
template <class Once>
void measure(Times& times, int samples, int batch, Once&& once) {
  for (int i = 0; i < samples; ++i) {
    const double begin = now_us();
    for (int j = 0; j < batch; ++j) once();
    times.us.push_back((now_us() - begin) / batch);
  }
}

void run_rank(const Options& options, int me, const std::shared_ptr<Segment>& segment, const int (&events)[2], BareShared* bare_shared) {
  const std::vector<WakeupEvent> wakeups = {WakeupEvent(events[0], &segment->wakeup(0)), WakeupEvent(events[1], &segment->wakeup(1))};
  Waiter waiter(wakeups[me], SpinPolicy{});
  StagingLedger ledger;
  NodeGroup node(segment, 0, 1, {0, 1}, me, wakeups, &ledger, &waiter, 60);
  Comm comm;
  comm.rank = me;
  comm.size = 2;
  comm.node = &node;
  comm.waiter = &waiter;
  BareLoop bare(bare_shared, me);

  std::vector<float> in(options.largest / sizeof(float), 0.0f), other(options.in_place ? 0 : in.size(), 0.0f);
  float* out = options.in_place ? in.data() : other.data();
  if (me == 0) printf("%10s | %-32s | %-32s | %s\n", "bytes", "allreduce_shm us p10/median/p90", "bare loop us p10/median/p90", "GB/s");
  for (size_t bytes = 4; bytes <= options.largest; bytes *= bytes < 1024 ? 16 : 4) {
    const size_t n = bytes / sizeof(float);
    const double estimate = 0.5 + static_cast<double>(bytes) / 8000;  // us
    const int batch = estimate < 20 ? 10 : 1;
    const int samples = std::clamp(static_cast<int>(options.seconds * 1e6 / 20 / (estimate * batch)), 1, 500);
    Times mine, limit;
    for (int turn = 0; turn < 10; ++turn) {
      measure(mine, samples, batch, [&] {
        const Segments::Piece piece{reinterpret_cast<const std::byte*>(in.data()), reinterpret_cast<std::byte*>(out), n};
        const Status s = allreduce_shm(comm, Segments{{&piece, 1}, n}, DType::float32, ReduceOp::sum, {});
        if (!s.ok()) {
          fprintf(stderr, "process %d: %s\n", me, s.message().c_str());
          _exit(1);
        }
      });
      measure(limit, samples, batch, [&] { bare.run(in.data(), out, n); });
    }
    if (me == 0) {
      printf("%10zu | %10.2f %10.2f %10.2f | %10.2f %10.2f %10.2f | %.2f\n", bytes, mine.at(0.1), mine.at(0.5), mine.at(0.9), limit.at(0.1),
             limit.at(0.5), limit.at(0.9), static_cast<double>(bytes) / mine.at(0.5) / 1000);
      fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  int next = 1;
  if (next < argc && std::string_view(argv[next]) == "in-place") options.in_place = true, ++next;
  if (next < argc) options.staging = static_cast<size_t>(std::max(1, atoi(argv[next++]))) << 20;
  if (next < argc) options.largest = static_cast<size_t>(std::max(1, atoi(argv[next++]))) << 20;
  if (next < argc) options.seconds = std::max(0.01, atof(argv[next++]));

  const SegmentSpec spec{2, 4 << 10, options.staging};
  const int memory = memfd_create("shm_bench", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, static_cast<off_t>(Segment::bytes_needed(spec))) != 0) {
    perror("memfd");
    return 1;
  }
  const int events[2] = {eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK)};
  auto* bare = shared<BareShared>();
  const pid_t child = fork();
  if (child < 0) {
    perror("fork");
    return 1;
  }
  const int me = child == 0 ? 1 : 0;
  pin(me);
  std::shared_ptr<Segment> segment;
  const Status mapped = Segment::map(memory, spec, &segment);
  if (!mapped.ok()) {
    fprintf(stderr, "%s\n", mapped.message().c_str());
    _exit(1);
  }
  if (me == 0)
    printf("isa %s, %s, staging %zu MiB\n", std::string(isa()).c_str(), options.in_place ? "in place" : "out of place",
           options.staging >> 20);
  run_rank(options, me, segment, events, bare);
  if (me == 1) _exit(0);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}
