// Where a pointer goes in a table whose size is a power of 2.
#pragma once
#include <cstddef>

namespace clew {

inline size_t mixed(const void* pointer) {
  return ((reinterpret_cast<size_t>(pointer) >> 4) * 0x9E3779B97F4A7C15ull) >> 20;
}

}  // namespace clew
