// The control plane: a tree of links over which ranks announce, agree, and learn of a failure. Rank 0 is the root, the first rank of
// each node is its child (and the parent of the node's other ranks), so the root's work grows with nodes, not ranks.
// Frames towards the root are relayed by nodes' first ranks, frames from the root go to everybody. pump() never blocks.
#pragma once
#include <poll.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/counter.h"
#include "base/status.h"
#include "engine/socket_set.h"
#include "transport/link.h"

namespace hvd {

// What they carry: engine/protocol.h.
enum class FrameType : uint8_t {
  announce = 1,   // up: what is ready here
  responses = 2,  // down: what all do next
  ready = 3,      // up: how far this rank is in a schedule
  go = 4,         // down: how far all are
  revoke = 5,     // up: a rank wants to leave the schedule
  revoked = 6,    // down: where everybody leaves it
  settled = 7,    // up: this rank is back to negotiation
  bye = 8,        // flooded: a rank leaves on purpose
  abort = 9,      // flooded: a rank is lost, or something went wrong
  ack = 10,       // to a neighbour: its bye or abort has arrived, nothing more will be sent to it
  stalled = 11,   // down: what waits at rank 0
  note_up = 12,   // up: what an observer of this rank has to say to rank 0's
  note_down = 13, // down: what one of rank 0's has to say to others
};

struct Frame {
  FrameType type;
  int32_t origin;
  std::string payload;
};

// Towards the root? Floods and acknowledgements go anywhere.
constexpr bool goes_up(FrameType t) {
  return t == FrameType::announce || t == FrameType::ready || t == FrameType::revoke || t == FrameType::settled || t == FrameType::note_up;
}
constexpr bool goes_down(FrameType t) {
  return t == FrameType::responses || t == FrameType::go || t == FrameType::revoked || t == FrameType::stalled || t == FrameType::note_down;
}
inline constexpr FrameType kLastFrameType = FrameType::note_down;

// Messages between a rank and its neighbours in the tree, relayed ones among them, and their bytes. Written by the thread that drives, read
// by any.
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
  // `parent` is null at the root. The links become the control plane's.
  Control(int rank, std::unique_ptr<Link> parent, int parent_rank, std::map<int, std::unique_ptr<Link>> children);

  void send_up(FrameType type, const std::string& payload);      // at the root: into its own inbox
  void broadcast(FrameType type, const std::string& payload);    // root only; into its own inbox as well
  // Root only: to that child, and from there to all below it; or, if it is this rank, into its own inbox.
  void send_down(FrameType type, const std::string& payload, int child);
  void flood(FrameType type, const std::string& payload);        // from any rank to all others; not into its own inbox

  // Moves bytes both ways, relays, fills the inbox. A neighbour whose link breaks is reported once through take_lost().
  void pump();
  // Looks whether neighbours with whom we talk through memory still live; pump() would not notice. One system call.
  void probe();
  bool pop(Frame* frame);
  // Goodbyes and aborts, which do not wait their turn.
  bool pop_urgent(Frame* frame);
  bool inbox_empty() const { return inbox_.empty(); }
  // Every neighbour has everything that we sent, up to the flood that ended the job (or is gone). Closing a socket on which the
  // peer's messages lie unread would reset it and take our last words with it.
  bool parted() const;
  bool unsent() const;
  // Has memory something for pump() to do: messages to read, room for what could not be sent? To be asked once the bell's mood says that
  // we are going to sleep; what changes later rings the bell.
  bool work_in_memory() const;

  struct Lost {
    int rank;
    Status why;
  };
  // Neighbours lost since the last call.
  std::vector<Lost> take_lost();

  // Descriptors to sleep on.
  void poll_fds(std::vector<std::pair<int, short>>& fds) const;

  // Of poll_fds() what is not a link's; -1: there is none.
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
    bool acked = false;   // has seen our last words
    uint32_t number = 0;  // in children_
    bool watched = false, awaits_room = false;  // in watch_
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
  SocketSet watch_;  // children on other hosts, where they are many
  std::deque<Frame> inbox_;
  std::deque<Frame> urgent_;
  std::vector<Lost> lost_;
  std::vector<pollfd> polls_;
  ControlTraffic sent_, received_;
};

}  // namespace hvd
