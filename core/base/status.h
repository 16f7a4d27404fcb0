// Errors as values. A Status is either ok (a null pointer, free to copy) or a code with a message. Callers add context
// while it is returned: `return s.with("allreduce 'grad.0'")`. Exceptions exist only at the Python boundary
// (bindings/python).
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace hvd {

// Kinds of errors, and the Python exceptions they become.
enum class Code : unsigned char {
  ok = 0,
  invalid_argument,  // refused at call time; the engine continues                    -> ValueError
  mismatch,          // ranks disagree about one operation; the engine continues      -> RanksDisagreeError
  shutdown,          // this process or a peer called shutdown                        -> HorovodInternalError
  peer_lost,         // a peer died or closed its connection                          -> HorovodInternalError
  timeout,           // no progress within the transport deadline                     -> HorovodInternalError
  internal,          // a bug in this library                                         -> HorovodInternalError
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  // `rank`: the rank that caused the error; -1: none.
  Status(Code code, std::string message, int rank = -1) : body_(std::make_shared<const Body>(Body{code, std::move(message), rank})) {}
  static Status Ok() { return {}; }

  bool ok() const { return !body_; }
  Code code() const { return body_ ? body_->code : Code::ok; }
  const std::string& message() const {
    static const std::string none;
    return body_ ? body_->message : none;
  }
  int rank() const { return body_ ? body_->rank : -1; }
  // Return the same error with context: "context: message".
  Status with(std::string_view context) const { return ok() ? *this : Status(code(), std::string(context) + ": " + message(), rank()); }

 private:
  struct Body {
    Code code;
    std::string message;
    int rank;
  };
  std::shared_ptr<const Body> body_;
};

#define HVD_RETURN_IF_ERROR(expr)                                   \
  do {                                                              \
    if (::hvd::Status hvd_s_ = (expr); !hvd_s_.ok()) return hvd_s_; \
  } while (0)

}  // namespace hvd
