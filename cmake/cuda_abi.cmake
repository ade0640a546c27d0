# ops/cuda_abi.h: the ABI version of libhillstar_cuda.so, a hash of every header that the program and the
# library share, so that a library of another build is refused and not called.

# hillstar_hash_headers(HEADER): appends the hash of a header and of all that it includes to
# hillstar_abi_hashes; paths as in #include.
function(hillstar_hash_headers header)
  get_property(seen GLOBAL PROPERTY hillstar_abi_headers)
  if(header IN_LIST seen)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY hillstar_abi_headers ${header})
  foreach(folder include src)
    set(path ${CMAKE_SOURCE_DIR}/${folder}/${header})
    if(EXISTS ${path})
      set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
      file(SHA256 ${path} hash)
      set_property(GLOBAL APPEND PROPERTY hillstar_abi_hashes ${hash})
      file(STRINGS ${path} includes REGEX "^#include \"")
      foreach(line IN LISTS includes)
        string(REGEX REPLACE "^#include \"(.*)\"$" "\\1" included "${line}")
        hillstar_hash_headers(${included})
      endforeach()
    endif()
  endforeach()
endfunction()

hillstar_hash_headers(ops/cuda_library.h)
get_property(hillstar_abi_hashes GLOBAL PROPERTY hillstar_abi_hashes)
string(SHA256 hillstar_abi_hash "${hillstar_abi_hashes}")
string(SUBSTRING ${hillstar_abi_hash} 0 7 hillstar_abi_digits)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/ops/cuda_abi.h CONTENT
"// Made by cmake/cuda_abi.cmake.
#pragma once

namespace hillstar {
inline constexpr int kCudaAbi = 0x@hillstar_abi_digits@;
}  // namespace hillstar
" @ONLY)
include_directories(${CMAKE_BINARY_DIR}/generated)
