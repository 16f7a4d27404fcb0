// Completion callback of an asynchronous TensorFlow kernel.
#pragma once
#include <functional>

#include "c_api.h"

namespace hvd::tensorflow {

// TensorFlow passes the address of a std::function<void()> on the caller's stack, so a kernel that finishes later needs
// a copy. The C API does not guarantee this type, so readable() checks it before the first copy.
class Done {
 public:
  // True if the memory looks like a std::function whose code belongs to TensorFlow.
  static bool readable(TF_AsyncOpKernelDoneCallback* done);

  Done() = default;
  explicit Done(TF_AsyncOpKernelDoneCallback* done) : copy_(*reinterpret_cast<std::function<void()>*>(done)) {}
  void operator()() { tf().RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&copy_)); }

 private:
  std::function<void()> copy_;
};

}  // namespace hvd::tensorflow
