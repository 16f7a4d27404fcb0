// Set of sockets watched with one epoll(7) instance, so that checking or sleeping costs only as much as there are
// events.
#pragma once
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cstdint>

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

}  // namespace hvd
