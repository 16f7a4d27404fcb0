// How an asynchronous kernel tells TensorFlow that it has finished.
#pragma once
#include <functional>

#include "c_api.h"

namespace hvd::tensorflow {

// TensorFlow hands a kernel the address of a std::function<void()> in the caller's frame, so whoever finishes later needs a copy of it.
// That this is what lies there is no promise of the C API; readable() looks before the first copy.
class Done {
 public:
  // Does it look like a std::function whose code is TensorFlow's?
  static bool readable(TF_AsyncOpKernelDoneCallback* done);

  Done() = default;
  explicit Done(TF_AsyncOpKernelDoneCallback* done) : copy_(*reinterpret_cast<std::function<void()>*>(done)) {}
  void operator()() { tf().RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&copy_)); }

 private:
  std::function<void()> copy_;
};

}  // namespace hvd::tensorflow
