// What a device tells of its own speed.
#pragma once

#include <cstdint>
#include <string>

#include "hillstar/engine_activity.h"

namespace hillstar {

// One kernel of a step.
struct KernelTime {
  std::string name;
  int64_t layer = 0;  // -1: the head
  double microseconds = 0;
  double bytes = 0;     // of memory that it has to move at least; 0: not told
  double products = 0;  // of two bytes that it has to do; 0: not told
  Stage stage = Stage::kOther;
};

// What a device can do at most, in a second: bytes that it reads of its memory, products of two
// bytes. 0: not told.
struct DevicePeaks {
  double read_bytes = 0;
  double products = 0;
};

}  // namespace hillstar
