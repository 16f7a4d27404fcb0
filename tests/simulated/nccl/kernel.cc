#include "kernel.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "driver.h"
#include "knobs.h"

namespace simnccl {
namespace {

void* at(const void* p, size_t bytes) { return bytes == 0 ? nullptr : driver().at(reinterpret_cast<uint64_t>(p), bytes); }

// How much of its input a rank shares, and how much it receives.
size_t input_bytes(const Task& t, int rank) {
  if (t.kind == Kind::broadcast && rank != t.peer) return 0;
  return t.kind == Kind::reduce_scatter ? t.bytes() * static_cast<size_t>(t.comm->size) : t.bytes();
}
size_t output_bytes(const Task& t) {
  if (t.kind == Kind::reduce && t.comm->rank != t.peer) return 0;
  if (t.kind == Kind::send) return 0;
  return t.kind == Kind::all_gather ? t.bytes() * static_cast<size_t>(t.comm->size) : t.bytes();
}

struct Kernel {
  ncclComm_t c;
  void* stream;
  std::vector<Task> collectives, sends, receives;
  uint64_t number = 0;  // among those with collectives
  std::vector<uint64_t> send_numbers;  // of its first message, by peer
  std::vector<uint64_t> receive_numbers;  // of each message received
  Fate fate = Fate::runs;
  ncclResult_t async_error = ncclSuccess;
  bool stuck = false, complete = false;

  size_t offset_of(size_t task, int rank) const;
};

// Inputs of the tasks are consecutive in a rank's area.
size_t Kernel::offset_of(size_t task, int rank) const {
  size_t offset = 0;
  for (size_t i = 0; i < task; ++i) offset += (input_bytes(collectives[i], rank) + 15) / 16 * 16;
  return offset;
}

// ---- first part: share inputs with the other ranks -----------------------------------------------------------------

int may_begin(void* argument) {
  auto& k = *static_cast<Kernel*>(argument);
  ncclComm_t c = k.c;
  if (c->abort.load()) return 1;
  if (k.fate != Fate::runs) {
    if (k.fate == Fate::fails) c->state = k.async_error;
    return 0;
  }
  for (int r = 0; k.number > 0 && r < c->size; ++r) {
    if (c->shared->rank(r).done.load(std::memory_order_acquire) + 1 < k.number) return 0;
  }
  for (const Task& t : k.sends) {
    Channel& channel = c->shared->channel(c->rank, t.peer);
    if (channel.taken.load(std::memory_order_acquire) < k.send_numbers[static_cast<size_t>(t.peer)]) return 0;
  }
  return 1;
}

void show_messages(Kernel& k, int peer) {
  ncclComm_t c = k.c;
  Channel& channel = c->shared->channel(c->rank, peer);
  channel.first = k.send_numbers[static_cast<size_t>(peer)];
  size_t n = 0, offset = 0;
  for (const Task& t : k.sends) {
    if (t.peer != peer) continue;
    const auto piece = c->shared->area(c->rank, peer, offset, t.bytes());
    if (t.bytes() != 0) std::memcpy(piece.data(), at(t.in, t.bytes()), t.bytes());
    channel.bytes[n++] = t.bytes();
    offset += (t.bytes() + 15) / 16 * 16;
  }
  channel.posted.store(channel.first + n, std::memory_order_release);
}

void begin(void* argument) {
  auto& k = *static_cast<Kernel*>(argument);
  ncclComm_t c = k.c;
  if (c->abort.load()) return;
  if (k.number > 0) {
    const size_t all = k.offset_of(k.collectives.size(), c->rank);
    constexpr size_t kMuch = 16 << 20;
    if (c->area_bytes > all + kMuch) c->shared->forget_area(c->rank);
    c->area_bytes = all;
    for (size_t i = 0; i < k.collectives.size(); ++i) {
      const size_t bytes = input_bytes(k.collectives[i], c->rank);
      if (bytes == 0) continue;
      const auto piece = c->shared->area(c->rank, k.offset_of(i, c->rank), bytes);
      std::memcpy(piece.data(), at(k.collectives[i].in, bytes), bytes);
    }
    RankState& own = c->shared->rank(c->rank);
    std::string text;
    for (const Task& t : k.collectives) text += (text.empty() ? "" : " + ") + t.text();
    own.signature.hash = std::hash<std::string>()(text);
    std::snprintf(own.signature.text, sizeof own.signature.text, "%s", text.c_str());
    own.arrived.store(k.number, std::memory_order_release);
  }
  for (int peer = 0; peer < c->size; ++peer) {
    // The channel of a peer without a message in this kernel may still hold one that it has not received.
    if (std::ranges::any_of(k.sends, [peer](const Task& t) { return t.peer == peer; })) show_messages(k, peer);
  }
}

// ---- second part: once all ranks have arrived ----------------------------------------------------------------------

// Another rank runs a different operation under this number: all ranks block, as with NCCL, but it is
// reported.
bool mismatched(Kernel& k, int rank) {
  ncclComm_t c = k.c;
  RankState& own = c->shared->rank(c->rank);
  RankState& other = c->shared->rank(rank);
  if (other.signature.hash == own.signature.hash) return false;
  k.stuck = true;
  if (c->shared->control().mismatch.exchange(1) == 0) {
    mistake("ranks disagree about collective #" + std::to_string(k.number) + ": rank " + std::to_string(c->rank) + " has " +
            own.signature.text + ", rank " + std::to_string(rank) + " has " + other.signature.text);
  }
  return true;
}

bool messages_are_there(Kernel& k) {
  ncclComm_t c = k.c;
  for (size_t i = 0; i < k.receives.size(); ++i) {
    const Task& t = k.receives[i];
    Channel& channel = c->shared->channel(t.peer, c->rank);
    if (channel.posted.load(std::memory_order_acquire) <= k.receive_numbers[i]) return false;
    const uint64_t sent = channel.bytes[k.receive_numbers[i] - channel.first];
    if (sent != t.bytes()) {
      k.stuck = true;
      mistake(c->name() + ": rank " + std::to_string(t.peer) + " sends " + std::to_string(sent) + " bytes, and " +
              std::to_string(t.bytes()) + " are to be received");
      return false;
    }
  }
  return true;
}

int may_end(void* argument) {
  auto& k = *static_cast<Kernel*>(argument);
  ncclComm_t c = k.c;
  if (c->abort.load()) return 1;
  if (k.stuck) return 0;
  for (int r = 0; k.number > 0 && r < c->size; ++r) {
    if (c->shared->rank(r).arrived.load(std::memory_order_acquire) < k.number) return 0;
    if (mismatched(k, r)) return 0;
  }
  if (!messages_are_there(k)) return 0;
  k.complete = true;
  return 1;
}

// Result of an aborted kernel.
void leave_garbage(const Kernel& k) {
  for (const auto* tasks : {&k.collectives, &k.receives}) {
    for (const Task& t : *tasks) {
      if (const size_t bytes = output_bytes(t); bytes != 0) std::memset(at(t.out, bytes), 0x5a, bytes);
    }
  }
}

void compute(const Kernel& k, size_t index) {
  const Task& t = k.collectives[index];
  Shared& shared = *t.comm->shared;
  const size_t bytes = t.bytes(), out_bytes = output_bytes(t);
  if (out_bytes == 0) return;
  auto* out = static_cast<std::byte*>(at(t.out, out_bytes));
  if (t.kind == Kind::broadcast) {
    std::memcpy(out, shared.area(t.peer, k.offset_of(index, t.peer), bytes).data(), bytes);
    return;
  }
  std::vector<std::unique_ptr<Shared::Piece>> pieces;
  std::vector<const void*> inputs;
  for (int r = 0; r < t.comm->size; ++r) {
    const size_t skipped = t.kind == Kind::reduce_scatter ? bytes * static_cast<size_t>(t.comm->rank) : 0;
    pieces.emplace_back(new Shared::Piece(shared.area(r, k.offset_of(index, r) + skipped, bytes)));
    inputs.push_back(pieces.back()->data());
    if (t.kind == Kind::all_gather) std::memcpy(out + bytes * static_cast<size_t>(r), inputs.back(), bytes);
  }
  if (t.kind != Kind::all_gather) reduce(t.how, out, inputs.data(), t.count);
}

void end(void* argument) {
  auto& k = *static_cast<Kernel*>(argument);
  ncclComm_t c = k.c;
  if (!k.complete) return leave_garbage(k);
  for (size_t i = 0; i < k.collectives.size(); ++i) compute(k, i);
  if (k.number > 0) c->shared->rank(c->rank).done.store(k.number, std::memory_order_release);
  for (size_t i = 0; i < k.receives.size(); ++i) {
    const Task& t = k.receives[i];
    Channel& channel = c->shared->channel(t.peer, c->rank);
    size_t offset = 0;
    for (uint64_t m = channel.first; m < k.receive_numbers[i]; ++m) offset += (channel.bytes[m - channel.first] + 15) / 16 * 16;
    if (t.bytes() != 0) std::memcpy(at(t.out, t.bytes()), c->shared->area(t.peer, c->rank, offset, t.bytes()).data(), t.bytes());
    channel.taken.store(k.receive_numbers[i] + 1, std::memory_order_release);
  }
}

// ---- third part: a send ends when it has been received -------------------------------------------------------------

int may_leave(void* argument) {
  auto& k = *static_cast<Kernel*>(argument);
  ncclComm_t c = k.c;
  if (c->abort.load()) return 1;
  std::vector<uint64_t> last = k.send_numbers;
  for (const Task& t : k.sends) ++last[static_cast<size_t>(t.peer)];
  for (const Task& t : k.sends) {
    if (c->shared->channel(c->rank, t.peer).taken.load(std::memory_order_acquire) < last[static_cast<size_t>(t.peer)]) return 0;
  }
  return 1;
}

void leave(void* argument) {
  auto* k = static_cast<Kernel*>(argument);
  k->c->finished.fetch_add(1);
  delete k;
}

// ---- connections -----------------------------------------------------------------------------------------------------------

// Blocks the host at the first use, until the ranks at the other ends get there, too.
bool connect(Kernel& k) {
  ncclComm_t c = k.c;
  if (knob_number("lazy", 1) == 0) return true;
  Shared& shared = *c->shared;
  uint32_t kinds = 0;
  for (const Task& t : k.collectives) kinds |= 1u << static_cast<int>(t.kind);
  if (version() < 22200) kinds = 0;  // connected at creation
  kinds &= ~c->connected;
  c->connected |= kinds;
  shared.rank(c->rank).connected.fetch_or(kinds, std::memory_order_release);
  for (const Task& t : k.sends) shared.channel(c->rank, t.peer).sends.store(1, std::memory_order_release);
  for (const Task& t : k.receives) shared.channel(t.peer, c->rank).receives.store(1, std::memory_order_release);
  return wait_for(c, [&] {
    for (int r = 0; kinds != 0 && r < c->size; ++r) {
      if ((shared.rank(r).connected.load(std::memory_order_acquire) & kinds) != kinds) return false;
    }
    for (const Task& t : k.sends) {
      if (!shared.channel(c->rank, t.peer).receives.load(std::memory_order_acquire)) return false;
    }
    for (const Task& t : k.receives) {
      if (!shared.channel(t.peer, c->rank).sends.load(std::memory_order_acquire)) return false;
    }
    return true;
  });
}

void number_tasks(Kernel& k) {
  ncclComm_t c = k.c;
  if (!k.collectives.empty()) k.number = ++c->collectives;
  k.send_numbers = c->sent;
  for (const Task& t : k.sends) ++c->sent[static_cast<size_t>(t.peer)];
  for (const Task& t : k.receives) k.receive_numbers.push_back(c->received[static_cast<size_t>(t.peer)]++);
}

ncclResult_t check_tasks(ncclComm_t comm, const std::vector<Task>& tasks) {
  std::vector<int> messages(static_cast<size_t>(comm->size));
  for (const Task& t : tasks) {
    if (t.stream != tasks.front().stream)
      return failed(ncclInvalidUsage, "several streams of one communicator in a group: the simulator cannot");
    if (t.kind == Kind::send && ++messages[static_cast<size_t>(t.peer)] > kMostMessages) {
      return failed(ncclInvalidUsage, "more than 64 messages to one peer in a group: the simulator cannot");
    }
  }
  return ncclSuccess;
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"AllReduce", "Reduce", "Broadcast", "AllGather", "ReduceScatter", "Send", "Recv"};
  return names[static_cast<int>(kind)];
}

std::string Task::text() const {
  std::string text = name_of(kind);
  text += " count " + std::to_string(count) + " type " + std::to_string(type);
  if (kind == Kind::all_reduce || kind == Kind::reduce || kind == Kind::reduce_scatter) {
    text += " op " + std::to_string(how.op);
    uint64_t bits = 0;
    std::memcpy(&bits, how.scalar, sizeof bits);
    if (how.premultiplied) text += " premultiplied by " + std::to_string(bits);
  }
  if (kind == Kind::reduce || kind == Kind::broadcast) text += " root " + std::to_string(peer);
  if (message()) text += " peer " + std::to_string(peer);
  return text;
}

ncclResult_t launch(ncclComm_t comm, std::vector<Task> tasks) {
  if (const ncclResult_t r = check_tasks(comm, tasks); r != ncclSuccess) return r;
  if (comm->launching.exchange(true)) mistake(comm->name() + ": two threads launch at once");
  auto* k = new Kernel;
  k->c = comm;
  k->stream = tasks.front().stream;
  for (Task& t : tasks) (t.kind == Kind::send ? k->sends : t.kind == Kind::recv ? k->receives : k->collectives).push_back(t);
  if (!connect(*k)) {
    delete k;
    comm->launching = false;
    return failed(ncclInternalError, "aborted while connecting");
  }
  number_tasks(*k);
  k->fate = count_kernel(comm->rank, &k->async_error);
  comm->launched.fetch_add(1);
  driver().enqueue(k->stream, begin, k, may_begin);
  driver().enqueue(k->stream, end, k, may_end);
  driver().enqueue(k->stream, leave, k, may_leave);
  comm->launching = false;
  return ncclSuccess;
}

void launch_alone(const Task& task) {
  ncclComm_t c = task.comm;
  if (driver().current_device() != c->device) {
    mistake(c->name() + ": launched with device " + std::to_string(driver().current_device()) +
            " current, and the communicator is of device " + std::to_string(c->device));
  }
  ncclResult_t unused = ncclSuccess;
  count_kernel(c->rank, &unused);
  c->launched.fetch_add(1);
  auto* copy = new Task(task);
  driver().enqueue(task.stream, [](void* argument) {
    const std::unique_ptr<Task> t(static_cast<Task*>(argument));
    const void* in = at(t->in, t->bytes());
    void* out = at(t->out, t->bytes());
    if (t->kind == Kind::broadcast || t->kind == Kind::all_gather) {
      if (in != out) std::memcpy(out, in, t->bytes());
    } else {
      reduce(t->how, out, &in, t->count);
    }
    t->comm->finished.fetch_add(1);
  }, copy, nullptr);
}

}  // namespace simnccl
