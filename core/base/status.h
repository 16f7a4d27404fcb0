// Errors as values. A Status is either ok (a null pointer, cheap to copy) or a code with a message. Callers add context
// when they return an error: `return s.with("allreduce 'grad.0'")`. Exceptions exist only at the Python boundary
// (bindings/python).
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace hvd {

// Kinds of errors, with the Python exception for each.
enum class Code : unsigned char {
  ok = 0,
  // The call was rejected, and the engine continues. Python raises ValueError.
  invalid_argument,
  // The ranks disagree about an operation, and the engine continues. Python raises RanksDisagreeError.
  mismatch,
  // This process or a peer called shutdown. Python raises HorovodInternalError.
  shutdown,
  // A peer died or closed its connection. Python raises HorovodInternalError.
  peer_lost,
  // No progress was made within the transport timeout. Python raises HorovodInternalError.
  timeout,
  // A bug in this library. Python raises HorovodInternalError.
  internal,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  // `rank` is the rank that caused the error, or -1 if there is none.
  Status(Code code, std::string message, int rank = -1) : body_(std::make_shared<const Body>(Body{code, std::move(message), rank})) {}
  static Status Ok() { return {}; }

  bool ok() const { return !body_; }
  Code code() const { return body_ ? body_->code : Code::ok; }
  const std::string& message() const {
    static const std::string none;
    return body_ ? body_->message : none;
  }
  int rank() const { return body_ ? body_->rank : -1; }
  // Return the same error with its message prefixed by `context`: "context: message".
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
