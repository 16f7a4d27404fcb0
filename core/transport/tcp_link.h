// Link over a connected stream socket (TCP or Unix) that Python has opened and authenticated.
#pragma once
#include <memory>
#include <optional>

#include "base/deadline.h"
#include "transport/link.h"

namespace hvd {

class TcpLink final : public Link {
 public:
  // Take ownership of `fd`: make it non-blocking, disable Nagle's algorithm, and close it in the destructor. On error,
  // the caller keeps the descriptor.
  static Status adopt(int fd, std::unique_ptr<TcpLink>* out);
  ~TcpLink() override;
  TcpLink(const TcpLink&) = delete;

  int64_t try_send(ConstBytes data) override;
  int64_t try_recv(Bytes data) override;
  const Status& error() const override { return error_; }
  int fd() const override { return fd_; }
  short wanted() const override { return wanted_; }
  void clear_wanted() override { wanted_ = 0; }
  void before_sleep() override;
  double unanswered() override;
  void hang_up() override;

 private:
  TcpLink(int fd, bool inet) : fd_(fd), inet_(inet) {}
  int64_t failed(int error);
  void wake_at(int bytes);

  int fd_;
  bool inet_;
  short wanted_ = 0;
  // Number of bytes requested by the last try_recv() that found no data.
  size_t asked_ = 0;
  // Current receive low-water mark of the socket (SO_RCVLOWAT).
  int low_water_ = 1;
  // True if no more data will arrive. A failed send does not set this, because the peer's last data can still be read.
  bool received_all_ = false;
  // Time since which data are unacknowledged, or empty if none are. Updated by unanswered().
  std::optional<Clock::time_point> owed_since_;
  Status error_;
};

}  // namespace hvd
