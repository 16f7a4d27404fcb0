#include "engine/control.h"

#include <poll.h>

#include <cstring>

namespace hvd {
namespace {

struct Header {
  uint32_t bytes;
  int32_t origin;
  uint8_t type;
  uint8_t pad[3];
};
static_assert(sizeof(Header) == 12);

// Maximum size of a valid payload in bytes. A larger length means that the stream is corrupt.
constexpr uint32_t kMaxPayload = 256u << 20;

}  // namespace

Control::Control(int rank, std::unique_ptr<Link> parent, int parent_rank, std::map<int, std::unique_ptr<Link>> children) : rank_(rank) {
  if (parent) {
    parent_ = std::make_unique<Neighbour>();
    parent_->rank = parent_rank;
    parent_->link = std::move(parent);
  }
  for (auto& [child, link] : children) {
    auto n = std::make_unique<Neighbour>();
    n->rank = child;
    n->link = std::move(link);
    n->number = static_cast<uint32_t>(children_.size());
    children_.push_back(std::move(n));
  }
  // Number of children up to which one recv(2) per child is cheaper than one epoll_wait(2) for all.
  constexpr size_t kMany = 2;
  if (children_.size() <= kMany) return;
  for (auto& child : children_) child->watched = !child->link->in_memory() && watch_.add(child->link->fd(), child->number);
}

void Control::queue(Neighbour& to, const Frame& frame) {
  if (to.broken) return;
  const Header header{static_cast<uint32_t>(frame.payload.size()), frame.origin, static_cast<uint8_t>(frame.type), {}};
  to.out.append(reinterpret_cast<const char*>(&header), sizeof header);
  to.out.append(frame.payload);
  sent_.add(sizeof header + frame.payload.size());
  flush(to);
}

void Control::send_up(FrameType type, const std::string& payload) {
  Frame frame{type, rank_, payload};
  if (parent_) {
    queue(*parent_, frame);
  } else {
    inbox_.push_back(std::move(frame));
  }
}

void Control::broadcast(FrameType type, const std::string& payload) {
  Frame frame{type, rank_, payload};
  for (auto& child : children_) queue(*child, frame);
  inbox_.push_back(std::move(frame));
}

void Control::send_down(FrameType type, const std::string& payload, int child) {
  Frame frame{type, rank_, payload};
  for (auto& c : children_) {
    if (c->rank == child) queue(*c, frame);
  }
  if (child == rank_) inbox_.push_back(std::move(frame));
}

void Control::flood(FrameType type, const std::string& payload) {
  const Frame frame{type, rank_, payload};
  if (parent_) queue(*parent_, frame);
  for (auto& child : children_) queue(*child, frame);
}

// Poll sockets for writability. Shared-memory rings need no polling, because the reader wakes this rank after freeing space.
short Control::events_of(const Neighbour& n) const {
  return static_cast<short>(POLLIN | (n.out.empty() || n.link->in_memory() ? 0 : POLLOUT));
}

void Control::flush(Neighbour& n) {
  while (!n.broken && n.sent < n.out.size()) {
    const int64_t moved = n.link->try_send({reinterpret_cast<const std::byte*>(n.out.data()) + n.sent, n.out.size() - n.sent});
    // Ignore a broken link here. receive() reports it, after it has read the peer's last message, such as a goodbye.
    if (moved <= 0) break;
    n.sent += static_cast<size_t>(moved);
  }
  if (n.broken || n.sent == n.out.size()) {
    n.out.clear();
    n.sent = 0;
  }
  if (n.watched && !n.broken && n.awaits_room != !n.out.empty()) {
    n.awaits_room = !n.out.empty();
    watch_.want_room(n.link->fd(), n.number, n.awaits_room);
  }
}

void Control::receive(Neighbour& n) {
  char buffer[64 << 10];
  while (!n.broken) {
    const int64_t moved = n.link->try_recv({reinterpret_cast<std::byte*>(buffer), sizeof buffer});
    if (moved == 0) return;
    if (moved < 0) {
      fail(n, n.link->error());
      return;
    }
    n.in.append(buffer, static_cast<size_t>(moved));
    parse(n);
    if (static_cast<size_t>(moved) < sizeof buffer && !n.link->in_memory()) return;
  }
}

void Control::parse(Neighbour& n) {
  size_t at = 0;
  const bool above = parent_.get() == &n;
  while (!n.broken && n.in.size() - at >= sizeof(Header)) {
    Header header;
    std::memcpy(&header, n.in.data() + at, sizeof header);
    if (header.bytes > kMaxPayload || header.type < 1 || header.type > static_cast<uint8_t>(kLastFrameType) ||
        (above ? goes_up : goes_down)(static_cast<FrameType>(header.type))) {
      fail(n, Status(Code::internal, "invalid control message"));
      return;
    }
    if (n.in.size() - at < sizeof header + header.bytes) break;
    received_.add(sizeof header + header.bytes);
    handle(n, {static_cast<FrameType>(header.type), header.origin, n.in.substr(at + sizeof header, header.bytes)});
    at += sizeof header + header.bytes;
  }
  n.in.erase(0, at);
}

void Control::handle(Neighbour& from, Frame frame) {
  switch (frame.type) {
    case FrameType::bye:
    case FrameType::abort:
      if (parent_ && parent_.get() != &from) queue(*parent_, frame);
      for (auto& child : children_) {
        if (child.get() != &from) queue(*child, frame);
      }
      queue(from, {FrameType::ack, rank_, {}});
      urgent_.push_back(std::move(frame));
      return;
    case FrameType::ack: from.acked = true; return;
    case FrameType::responses:
    case FrameType::go:
    case FrameType::revoked:
    case FrameType::stalled:
    case FrameType::observer_message_down:
      for (auto& child : children_) queue(*child, frame);
      break;
    // Relay all other frames towards rank 0.
    default:
      if (parent_) {
        queue(*parent_, frame);
        return;
      }
  }
  inbox_.push_back(std::move(frame));
}

void Control::fail(Neighbour& n, Status why) {
  n.broken = true;
  n.out.clear();
  n.sent = 0;
  if (n.watched) watch_.remove(n.link->fd());
  lost_.push_back({n.rank, std::move(why)});
}

void Control::pump() {
  auto each = [this](Neighbour& n) {
    flush(n);
    receive(n);
  };
  if (parent_) each(*parent_);
  for (auto& child : children_) {
    if (!child->watched) each(*child);
  }
  watch_.look([&](uint32_t number) {
    if (!children_[number]->broken) each(*children_[number]);
  });
}

void Control::probe() {
  auto each = [this](Neighbour& n) {
    if (!n.broken && n.link->in_memory()) polls_.push_back({n.link->fd(), POLLIN, 0});
  };
  polls_.clear();
  if (parent_) each(*parent_);
  for (auto& child : children_) each(*child);
  if (polls_.empty() || ::poll(polls_.data(), polls_.size(), 0) <= 0) return;
  if (parent_) parent_->link->probe();
  for (auto& child : children_) {
    if (!child->broken) child->link->probe();
  }
}

bool Control::pop(Frame* frame) {
  if (inbox_.empty()) return false;
  *frame = std::move(inbox_.front());
  inbox_.pop_front();
  return true;
}

bool Control::pop_urgent(Frame* frame) {
  if (urgent_.empty()) return false;
  *frame = std::move(urgent_.front());
  urgent_.pop_front();
  return true;
}

bool Control::parted() const {
  auto gone = [](const Neighbour& n) { return n.broken || (n.acked && n.out.empty()); };
  if (parent_ && !gone(*parent_)) return false;
  for (const auto& child : children_) {
    if (!gone(*child)) return false;
  }
  return true;
}

std::vector<Control::Lost> Control::take_lost() {
  std::vector<Lost> out;
  out.swap(lost_);
  return out;
}

bool Control::unsent() const {
  if (parent_ && !parent_->broken && !parent_->out.empty()) return true;
  for (const auto& child : children_) {
    if (!child->broken && !child->out.empty()) return true;
  }
  return false;
}

bool Control::work_in_memory() const {
  auto stirs = [](const Neighbour& n) { return !n.broken && (n.link->readable() || (!n.out.empty() && n.link->writable())); };
  if (parent_ && stirs(*parent_)) return true;
  for (const auto& child : children_) {
    if (stirs(*child)) return true;
  }
  return false;
}

void Control::poll_fds(std::vector<std::pair<int, short>>& fds) const {
  auto add = [&](const Neighbour& n) {
    if (!n.broken) fds.emplace_back(n.link->fd(), events_of(n));
  };
  if (parent_) add(*parent_);
  for (const auto& child : children_) {
    if (!child->watched) add(*child);
  }
  if (watch_.fd() >= 0) fds.emplace_back(watch_.fd(), POLLIN);
}

}  // namespace hvd
