// What TensorFlow hands an asynchronous kernel to end it with: a std::function<void()> of libstdc++, with which all
// wheels of TensorFlow are built. It ends with the call, so it is copied; by its layout, as our own C++ library may be
// another.
#pragma once

struct TF_AsyncOpKernelDoneCallback;

namespace hvd::tensorflow {

class DoneCallback {
 public:
  explicit DoneCallback(const TF_AsyncOpKernelDoneCallback* original) {
    const auto& function = *reinterpret_cast<const Function*>(original);
    function.manage(&copy_.target, &function.target, kClone);
    copy_.manage = function.manage;
    copy_.invoke = function.invoke;
  }
  DoneCallback(const DoneCallback& other) : DoneCallback(other.handle()) {}
  DoneCallback& operator=(const DoneCallback&) = delete;
  ~DoneCallback() { copy_.manage(&copy_.target, &copy_.target, kDestroy); }

  void operator()() const { copy_.invoke(&copy_.target); }

 private:
  // Held there if it is small, otherwise behind a pointer: `manage` knows.
  struct Target {
    alignas(void*) unsigned char bytes[2 * sizeof(void*)];
  };
  enum Task : unsigned { kClone = 2, kDestroy = 3 };
  struct Function {
    Target target;
    bool (*manage)(Target* to, const Target* from, Task task);
    void (*invoke)(const Target*);
  };

  [[nodiscard]] const TF_AsyncOpKernelDoneCallback* handle() const {
    return reinterpret_cast<const TF_AsyncOpKernelDoneCallback*>(&copy_);
  }

  Function copy_ = {};
};

}  // namespace hvd::tensorflow
