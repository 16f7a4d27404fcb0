#include "transport/tcp_link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>

namespace hvd {
namespace {

constexpr const char* kClosed = "the peer closed its connection";
// Minimum and maximum bytes of the receive low-water mark.
constexpr size_t kLeastMark = 8 << 10, kMaxMark = 64 << 10;

Status refuse(int fd, const char* what) {
  return Status(Code::invalid_argument, "descriptor " + std::to_string(fd) + " cannot be used as a link (" + what +
                                            "): " + strerror(errno) + "; a connected stream socket is needed");
}

}  // namespace

Status TcpLink::adopt(int fd, std::unique_ptr<TcpLink>* out) {
  int type = 0;
  socklen_t length = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0) return refuse(fd, "not a socket");
  if (type != SOCK_STREAM) {
    errno = EPROTOTYPE;
    return refuse(fd, "not a stream socket");
  }
  sockaddr_storage peer{};
  length = sizeof peer;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return refuse(fd, "not connected");
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) return refuse(fd, "fcntl");
  const bool inet = peer.ss_family == AF_INET || peer.ss_family == AF_INET6;
  if (inet) {
    const int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) return refuse(fd, "TCP_NODELAY");
  }
  out->reset(new TcpLink(fd, inet));
  return {};
}

TcpLink::~TcpLink() { ::close(fd_); }

int64_t TcpLink::failed(int error) {
  if (error_.ok()) {
    const bool closed = error == 0 || error == EPIPE || error == ECONNRESET;
    error_ = Status(Code::peer_lost, closed ? kClosed : std::string("the connection failed: ") + strerror(error));
  }
  return -1;
}

// Set the receive low-water mark (SO_RCVLOWAT), because a wakeup for every packet of a large transfer costs more than the transfer. Marks
// are powers of two, so that they change rarely. The kernel wakes this thread earlier if its buffer cannot hold that much.
void TcpLink::before_sleep() {
  if (!inet_ || !(wanted_ & POLLIN)) return;
  const int mark = asked_ < kLeastMark ? 1 : static_cast<int>(std::bit_floor(std::min(asked_, kMaxMark)));
  if (mark != low_water_) wake_at(mark);
}

// Read the time from TCP_INFO. TCP_USER_TIMEOUT would also drop the connection to a live peer that has stopped reading for a while.
double TcpLink::unanswered() {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (!inet_ || getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return 0;
  if (info.tcpi_unacked == 0 && info.tcpi_probes == 0) {
    owed_since_.reset();
    return 0;
  }
  const auto present = Clock::now();
  const auto last_ack = present - std::chrono::milliseconds(info.tcpi_last_ack_recv);
  owed_since_ = std::max(owed_since_.value_or(present), last_ack);
  return std::chrono::duration<double>(present - *owed_since_).count();
}

void TcpLink::hang_up() { ::shutdown(fd_, SHUT_RDWR); }

void TcpLink::wake_at(int bytes) {
  if (setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes) == 0) low_water_ = bytes;
}

int64_t TcpLink::try_send(ConstBytes data) {
  if (data.empty()) return 0;
  ssize_t n;
  do {
    n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n >= 0) {
    wanted_ &= ~POLLOUT;
    return n;
  }
  if (errno != EAGAIN && errno != EWOULDBLOCK) return failed(errno);
  wanted_ |= POLLOUT;
  return 0;
}

int64_t TcpLink::try_recv(Bytes data) {
  if (data.empty()) return 0;
  if (received_all_) return -1;
  ssize_t n;
  do {
    n = ::recv(fd_, data.data(), data.size(), 0);
  } while (n < 0 && errno == EINTR);
  if (n > 0) {
    wanted_ &= ~POLLIN;
    return n;
  }
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    wanted_ |= POLLIN;
    asked_ = data.size();
    // Some users sleep on this socket without before_sleep(), so the low-water mark must not exceed the last request.
    if (asked_ < static_cast<size_t>(low_water_)) wake_at(1);
    return 0;
  }
  received_all_ = true;
  return failed(n == 0 ? 0 : errno);
}

}  // namespace hvd
