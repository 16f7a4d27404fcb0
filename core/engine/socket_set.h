// Many sockets looked at together: looking, and sleeping until something comes, costs no more than what has come (epoll(7)).
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

  // False: it cannot be watched, and its user has to look for itself.
  bool add(int socket, uint32_t number) {
    if (socket < 0) return false;
    if (epoll_ < 0) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    return epoll_ >= 0 && change(EPOLL_CTL_ADD, socket, number, false);
  }
  // Is room for sending something to look for?
  void want_room(int socket, uint32_t number, bool wanted) { (void)change(EPOLL_CTL_MOD, socket, number, wanted); }
  void remove(int socket) { (void)change(EPOLL_CTL_DEL, socket, 0, false); }

  // see(number) for those with news or room. Others may wait for the next call.
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
  // Readable when look() would find something; -1: nothing is watched.
  int fd() const { return epoll_; }

 private:
  static constexpr unsigned kRounds = 16;  // so that nobody who never stops talking is all that is heard

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
