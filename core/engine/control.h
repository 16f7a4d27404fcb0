// Control plane: a tree of links over which ranks request operations, agree on their order, and learn of failures. Rank
// 0 is the root. The first rank of each node is its child and the parent of the node's other ranks, so the root's work
// grows with the number of nodes, not ranks. The first ranks relay frames to the root; frames from the root go to all
// ranks. pump() never blocks.
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

  // Return false if the socket cannot be watched; the caller must then check it itself.
  bool add(int socket, uint32_t number) {
    if (socket < 0) return false;
    if (epoll_ < 0) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    return epoll_ >= 0 && change(EPOLL_CTL_ADD, socket, number, false);
  }
  // Set whether the socket is also watched for room to send.
  void want_room(int socket, uint32_t number, bool wanted) { (void)change(EPOLL_CTL_MOD, socket, number, wanted); }
  void remove(int socket) { (void)change(EPOLL_CTL_DEL, socket, 0, false); }

  // Call see(number) for sockets with data or room. Some may be left for the next call.
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
  // Readable when look() would find an event; -1: no socket is watched.
  int fd() const { return epoll_; }

 private:
  static constexpr unsigned kRounds = 16;  // bounds look() when a peer never stops sending

  bool change(int what, int socket, uint32_t number, bool room) {
    epoll_event event{};
    event.events = EPOLLIN | (room ? EPOLLOUT : 0u);
    event.data.u32 = number;
    return ::epoll_ctl(epoll_, what, socket, &event) == 0;
  }

  int epoll_ = -1;
  unsigned rounds_ = 0;
};

// Control plane: a tree of links over which ranks request operations, agree on their order, and learn of failures. Rank
// 0 is the root. The first rank of each node is its child and the parent of the node's other ranks, so the root's work
// grows with the number of nodes, not ranks. The first ranks relay frames to the root; frames from the root go to all
// ranks. pump() never blocks.

// Frame contents: engine/protocol.h.
enum class FrameType : uint8_t {
  request = 1,   // up: tensors that are ready on this rank
  responses = 2,  // down: what all ranks execute next
  ready = 3,      // up: this rank's position in a schedule
  go = 4,         // down: position that all ranks have reached
  revoke = 5,     // up: a rank wants to leave the schedule
  revoked = 6,    // down: position at which all ranks leave it
  settled = 7,    // up: this rank has returned to negotiation
  bye = 8,        // flooded: a rank leaves on purpose
  abort = 9,      // flooded: a rank is lost, or an error occurred
  ack = 10,       // to a neighbour: its bye or abort has arrived; nothing more will be sent to it
  stalled = 11,   // down: operations waiting at rank 0
  observer_message_up = 12,   // up: message from an observer of this rank to rank 0's
  observer_message_down = 13,  // down: message from an observer of rank 0 to others
};

// One message of the control plane: its type, the rank that sent it, and its encoded content.
struct Frame {
  FrameType type;
  int32_t origin;
  std::string payload;
};

// True for frames that travel towards the root. Floods and acknowledgements travel in any direction.
constexpr bool goes_up(FrameType t) {
  return t == FrameType::request || t == FrameType::ready || t == FrameType::revoke || t == FrameType::settled ||
         t == FrameType::observer_message_up;
}
constexpr bool goes_down(FrameType t) {
  return t == FrameType::responses || t == FrameType::go || t == FrameType::revoked || t == FrameType::stalled ||
         t == FrameType::observer_message_down;
}
inline constexpr FrameType kLastFrameType = FrameType::observer_message_down;

// Count of messages, relayed ones included, and bytes exchanged with the neighbours in the tree. Written by the thread
// that drives, read by any thread.
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
  // `parent` is null at the root. Takes ownership of the links.
  Control(int rank, std::unique_ptr<Link> parent, int parent_rank, std::map<int, std::unique_ptr<Link>> children);

  void send_up(FrameType type, const std::string& payload);      // at the root: adds to its own inbox
  void broadcast(FrameType type, const std::string& payload);    // root only; adds to its own inbox as well
  // Root only: send to the subtree of `child`, or into the root's own inbox if `child` is this rank.
  void send_down(FrameType type, const std::string& payload, int child);
  // Sends from any rank to all others; does not add to its own inbox.
  void flood(FrameType type, const std::string& payload);

  // Send and receive without blocking, relay frames, fill the inbox. A neighbour whose link breaks is reported once
  // through take_lost().
  void pump();
  // Check whether neighbours connected through shared memory are alive, which pump() would not notice. One system call.
  void probe();
  bool pop(Frame* frame);
  // Pop a goodbye or abort; these are handled ahead of all other frames.
  bool pop_urgent(Frame* frame);
  bool inbox_empty() const { return inbox_.empty(); }
  // True if every neighbour has received all frames from this rank, up to the flood that ended the job, or is gone.
  // Closing a socket while the peer's messages are unread would reset it, and the last frames would be lost.
  bool parted() const;
  bool unsent() const;
  // True if shared memory has work for pump(): messages to read, or room for pending ones. Ask only after the sleep state
  // announces that this engine sleeps; later changes then trigger the wakeup event.
  bool work_in_memory() const;

  struct Lost {
    int rank;
    Status why;
  };
  // Return the neighbours lost since the last call.
  std::vector<Lost> take_lost();

  // Append the descriptors to sleep on.
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;

  // The one descriptor of poll_fds() that belongs to no link; -1: none.
  int watch_fd() const { return watch_.fd(); }

  const ControlTraffic& sent() const { return sent_; }
  const ControlTraffic& received() const { return received_; }

 private:
  struct Neighbour {
    int rank;
    std::unique_ptr<Link> link;
    std::string out;      // bytes not yet sent
    size_t sent = 0;
    std::string in;       // bytes of an incomplete frame
    bool broken = false;
    bool acked = false;   // has acknowledged this rank's bye or abort
    uint32_t number = 0;  // index of the neighbour in children_
    bool watched = false, awaits_room = false;  // state of the neighbour in watch_
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
  SocketSet watch_;  // children on other hosts, if there are many
  std::deque<Frame> inbox_;
  std::deque<Frame> urgent_;
  std::vector<Lost> lost_;
  std::vector<pollfd> polls_;
  ControlTraffic sent_, received_;
};

}  // namespace hvd
