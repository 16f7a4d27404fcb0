// Control plane: a tree of links over which ranks request operations, agree on their order, and report failures. Rank 0 is the root. The
// first rank of each node is a child of the root and the parent of the node's other ranks, so the root's work grows with the number of
// nodes, not ranks. Frames from the root go to all ranks, and frames to the root are relayed by these first ranks. pump() never blocks.
#pragma once
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/counter.h"
#include "base/status.h"
#include "transport/link.h"

namespace hvd {

class SocketSet {
 public:
  SocketSet() = default;
  ~SocketSet() {
    if (epoll_ >= 0) ::close(epoll_);
  }
  SocketSet(const SocketSet&) = delete;

  // Watch a socket for incoming data. If this returns false, the caller must poll the socket itself.
  bool add(int socket, uint32_t number) {
    if (socket < 0) return false;
    if (epoll_ < 0) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    return epoll_ >= 0 && change(EPOLL_CTL_ADD, socket, number, false);
  }
  // Start or stop watching the socket for writability.
  void want_room(int socket, uint32_t number, bool wanted) { (void)change(EPOLL_CTL_MOD, socket, number, wanted); }
  void remove(int socket) { (void)change(EPOLL_CTL_DEL, socket, 0, false); }

  // Call see(number) for each socket that is readable or writable. Sockets that one call leaves out are reported by the next.
  template <class See>
  void look(See see) {
    if (epoll_ < 0) return;
    std::array<epoll_event, 128> found;
    int n;
    do {
      n = ::epoll_wait(epoll_, found.data(), static_cast<int>(found.size()), 0);
      for (int i = 0; i < n; ++i) see(found[static_cast<size_t>(i)].data.u32);
    } while (n == static_cast<int>(found.size()) && ++rounds_ % kRounds);
  }
  // Return a descriptor that is readable when look() would find an event, or -1 if no socket is watched.
  int fd() const { return epoll_; }

 private:
  // Maximum number of epoll rounds per look(), so that a peer that never stops sending cannot block the caller.
  static constexpr unsigned kRounds = 16;

  bool change(int what, int socket, uint32_t number, bool room) {
    epoll_event event{};
    event.events = EPOLLIN | (room ? EPOLLOUT : 0u);
    event.data.u32 = number;
    return ::epoll_ctl(epoll_, what, socket, &event) == 0;
  }

  int epoll_ = -1;
  unsigned rounds_ = 0;
};

// Frame types, with the direction in which each travels. engine/protocol.h defines the payloads. A flooded frame
// travels from any rank to all others.
enum class FrameType : uint8_t {
  // Message to rank 0 that lists the tensors that are ready on the sender.
  request = 1,
  // Message from rank 0 to all ranks that lists the operations to execute next.
  responses = 2,
  // Message to rank 0 with the sender's position in a schedule.
  ready = 3,
  // Message from rank 0 to all ranks with the position that every rank has reached.
  go = 4,
  // Message that tells rank 0 that the sender wants to leave the schedule.
  revoke = 5,
  // Message from rank 0 to all ranks with the position at which they leave the schedule.
  revoked = 6,
  // Message to rank 0 that the sender has returned to negotiation.
  settled = 7,
  // Message, flooded to all ranks, announcing that the sender is leaving the job on purpose.
  bye = 8,
  // Message, flooded to all ranks, reporting that a rank is lost or that an error has occurred.
  abort = 9,
  // Message to a neighbour that acknowledges its bye or abort. The sender will send nothing more.
  ack = 10,
  // Message from rank 0 to all ranks that lists the operations for which it still waits.
  stalled = 11,
  // Message from an observer on the sending rank to the observers on rank 0.
  observer_message_up = 12,
  // Message from an observer on rank 0 to the observers on other ranks.
  observer_message_down = 13,
};

// One message of the control plane: its type, the rank that sent it, and its encoded content.
struct Frame {
  FrameType type;
  int32_t origin;
  std::string payload;
};

// True for frames that travel only towards rank 0. Flooded frames and acknowledgements travel in any direction.
constexpr bool goes_up(FrameType t) {
  return t == FrameType::request || t == FrameType::ready || t == FrameType::revoke || t == FrameType::settled ||
         t == FrameType::observer_message_up;
}
constexpr bool goes_down(FrameType t) {
  return t == FrameType::responses || t == FrameType::go || t == FrameType::revoked || t == FrameType::stalled ||
         t == FrameType::observer_message_down;
}
inline constexpr FrameType kLastFrameType = FrameType::observer_message_down;

// Counts of messages (including relayed ones) and bytes exchanged with the neighbours in the control tree. Written by
// the thread that runs the progress loop, readable from any thread.
class ControlTraffic {
 public:
  struct Read {
    uint64_t messages, bytes;
  };
  void add(size_t bytes) {
    messages_.add(1);
    bytes_.add(bytes);
  }
  Read read() const { return {messages_.get(), bytes_.get()}; }

 private:
  Counter messages_, bytes_;
};

class Control {
 public:
  // Take ownership of the links. `parent` is null at the root.
  Control(int rank, std::unique_ptr<Link> parent, int parent_rank, std::map<int, std::unique_ptr<Link>> children);

  // Send a frame to the root. At the root, add it to this rank's inbox.
  void send_up(FrameType type, const std::string& payload);
  // Root only: send a frame to all ranks, and add it to this rank's inbox.
  void broadcast(FrameType type, const std::string& payload);
  // Root only: send a frame to the subtree of `child`, or add it to this rank's inbox if `child` is this rank.
  void send_down(FrameType type, const std::string& payload, int child);
  // Send a frame from any rank to all others. It is not added to this rank's inbox.
  void flood(FrameType type, const std::string& payload);

  // Send and receive without blocking, relay frames, and fill the inbox. take_lost() reports each neighbour whose link
  // has broken.
  void pump();
  // Check that neighbours with shared-memory links are alive, because pump() does not notice their death. Costs one system call.
  void probe();
  bool pop(Frame* frame);
  // Pop a goodbye or abort from the inbox, to handle it before all other frames.
  bool pop_urgent(Frame* frame);
  bool inbox_empty() const { return inbox_.empty(); }
  // True if every neighbour is gone or has received all frames from this rank. Closing a socket earlier, with unread messages, would reset
  // the connection and lose the last frames, which end the job.
  bool parted() const;
  bool unsent() const;
  // True if shared memory has work for pump(): messages to read, or space for messages to send. Set the sleep state to sleeping before this
  // call, so that any later change triggers the wakeup event.
  bool work_in_memory() const;

  struct Lost {
    int rank;
    Status why;
  };
  // Return the neighbours lost since the last call.
  std::vector<Lost> take_lost();

  // Append the file descriptors to poll while this rank sleeps.
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;

  // Return the epoll descriptor that watches the children's sockets, or -1 if none are watched.
  int watch_fd() const { return watch_.fd(); }

  const ControlTraffic& sent() const { return sent_; }
  const ControlTraffic& received() const { return received_; }

 private:
  struct Neighbour {
    int rank;
    std::unique_ptr<Link> link;
    // Bytes queued for sending to this neighbour.
    std::string out;
    size_t sent = 0;
    // Bytes received so far of an incomplete frame.
    std::string in;
    bool broken = false;
    // True once the neighbour has acknowledged this rank's goodbye or abort.
    bool acked = false;
    // Index of this neighbour in children_.
    uint32_t number = 0;
    // `watched` is true if watch_ watches the neighbour's socket for data, and `awaits_room` if it also watches for writability.
    bool watched = false, awaits_room = false;
  };
  short events_of(const Neighbour& n) const;
  void queue(Neighbour& to, const Frame& frame);
  void flush(Neighbour& n);
  void receive(Neighbour& n);
  void parse(Neighbour& n);
  void handle(Neighbour& from, Frame frame);
  void fail(Neighbour& n, Status why);

  int rank_;
  std::unique_ptr<Neighbour> parent_;
  std::vector<std::unique_ptr<Neighbour>> children_;
  // Epoll set of the children's sockets, used if there are more than two children.
  SocketSet watch_;
  std::deque<Frame> inbox_;
  std::deque<Frame> urgent_;
  std::vector<Lost> lost_;
  std::vector<pollfd> polls_;
  ControlTraffic sent_, received_;
};

}  // namespace hvd
