// What the address and thread checks of a compiler want to be told when a program goes to another
// stack. Does nothing in a build without them.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace hillstar::emulated {

// A stack that is gone to and left. LeaveFor right before a switch, Enter right after it.
class SwitchedStack {
 public:
  // Of a fiber; the scheduler's own stack is known when it is first left.
  void Begin([[maybe_unused]] void* bottom, [[maybe_unused]] size_t num_bytes) {
#if defined(__SANITIZE_ADDRESS__)
    bottom_ = bottom;
    num_bytes_ = num_bytes;
#endif
#if defined(__SANITIZE_THREAD__)
    fiber_ = __tsan_create_fiber(0);
#endif
  }
  void LeaveFor([[maybe_unused]] const SwitchedStack& other) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&kept_, other.bottom_, other.num_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
    fiber_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(other.fiber_, 0);
#endif
  }
  // `from`: the stack that was left, whose place is noted; may be null.
  void Enter([[maybe_unused]] SwitchedStack* from) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(kept_, from ? &from->bottom_ : nullptr,
                                    from ? &from->num_bytes_ : nullptr);
#endif
  }

 private:
#if defined(__SANITIZE_ADDRESS__)
  const void* bottom_ = nullptr;
  size_t num_bytes_ = 0;
  void* kept_ = nullptr;
#endif
#if defined(__SANITIZE_THREAD__)
  void* fiber_ = nullptr;
#endif
};

}  // namespace hillstar::emulated
