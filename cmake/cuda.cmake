# The CUDA backend is built twice from the same .cu files: by nvcc where there is one, and by the host's
# compiler for the emulated device that tests use (src/device/cuda/emulated).
option(HILLSTAR_CUDA "Build libhillstar_cuda.so where nvcc is found" ON)
# Where there is a GPU, its own machine code is what is wanted, and takes a quarter of the time.
execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE hillstar_gpus ERROR_QUIET RESULT_VARIABLE
                hillstar_gpus_failed)
if(hillstar_gpus_failed EQUAL 0 AND hillstar_gpus MATCHES "GPU 0")
  set(hillstar_has_gpu ON)
  set(hillstar_architectures native)
else()
  set(hillstar_has_gpu OFF)
  set(hillstar_architectures "80;89;90;120")
endif()
set(HILLSTAR_CUDA_ARCHITECTURES "${hillstar_architectures}" CACHE STRING
    "Compute capabilities of libhillstar_cuda.so; by default this machine's GPUs', or all without")
set(hillstar_cuda_folder ${CMAKE_SOURCE_DIR}/src/device/cuda)

set(hillstar_has_nvcc OFF)
if(HILLSTAR_CUDA AND NOT HILLSTAR_SANITIZE)
  find_program(HILLSTAR_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(HILLSTAR_NVCC)
    set(CMAKE_CUDA_COMPILER ${HILLSTAR_NVCC})
    set(CMAKE_CUDA_ARCHITECTURES ${HILLSTAR_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    find_package(CUDAToolkit REQUIRED)
    # CMake 3.25 knows this of older compilers only.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    set(hillstar_has_nvcc ON)
  else()
    message(STATUS "nvcc was not found: everything but libhillstar_cuda.so is built")
  endif()
endif()

# Folders where <cuda_runtime.h>, ptx.cuh and launch_kernel.cuh are found.
set(hillstar_emulated_includes ${hillstar_cuda_folder}/emulated)
set(hillstar_hardware_includes ${hillstar_cuda_folder}/hardware)
# Nothing is contracted or rounded otherwise than it is written; constexpr functions are for both sides.
set(hillstar_nvcc_flags --fmad=false -prec-div=true -prec-sqrt=true -ftz=false
    --expt-relaxed-constexpr)

# hillstar_cuda_objects(NAME SOURCES ...): object libraries NAME_emulated and, with nvcc, NAME_hardware.
# Index arithmetic mixes the widths that CUDA's own names have, so conversions are not warned about.
function(hillstar_cuda_objects name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  set(emulated_sources)
  foreach(source ${ARG_SOURCES})  # for the host's compiler every source gets a file that it knows
    if(source MATCHES "[.]cu$")
      set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emulated/${source}.cc)
      file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      list(APPEND emulated_sources ${wrapper})
    else()
      list(APPEND emulated_sources ${source})
    endif()
  endforeach()
  add_library(${name}_emulated OBJECT ${emulated_sources})
  target_include_directories(${name}_emulated BEFORE PRIVATE ${hillstar_emulated_includes})
  target_compile_options(${name}_emulated PRIVATE -fPIC -Wno-conversion -Wno-unknown-pragmas)
  if(hillstar_has_nvcc)
    add_library(${name}_hardware OBJECT ${ARG_SOURCES})
    target_include_directories(${name}_hardware BEFORE PRIVATE ${hillstar_hardware_includes})
    target_include_directories(${name}_hardware SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    target_compile_options(${name}_hardware PRIVATE
      $<$<COMPILE_LANGUAGE:CUDA>:${hillstar_nvcc_flags} -Xptxas=-warn-spills
        -Xcompiler=-fPIC,-Wall,-Wextra,-Wshadow,-ffp-contract=off>
      $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  endif()
endfunction()

# hillstar_cuda_test(NAME SOURCES ... OBJECTS object libraries' names DEPS ...): the tests of kernels,
# once on the emulated device (NAME_emulated, label cpu) and once on a GPU (NAME_gpu, label gpu),
# where they skip without one.
function(hillstar_cuda_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;OBJECTS;DEPS" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(emulated)
  set(hardware)
  foreach(object ${ARG_OBJECTS})
    list(APPEND emulated $<TARGET_OBJECTS:${object}_emulated>)
    list(APPEND hardware $<TARGET_OBJECTS:${object}_hardware>)
  endforeach()
  hillstar_test(${name}_emulated SOURCES ${ARG_SOURCES} ${emulated}
    DEPS hillstar_emulated_device ${ARG_DEPS} TIMEOUT ${ARG_TIMEOUT})
  target_include_directories(${name}_emulated BEFORE PRIVATE ${hillstar_emulated_includes})
  target_compile_definitions(${name}_emulated PRIVATE HILLSTAR_CUDA_IS_EMULATED=true)
  if(hillstar_has_nvcc)
    hillstar_test(${name}_gpu SOURCES ${ARG_SOURCES} ${hardware}
      DEPS CUDA::cudart_static ${ARG_DEPS} TIMEOUT ${ARG_TIMEOUT})
    target_include_directories(${name}_gpu BEFORE PRIVATE ${hillstar_hardware_includes})
    target_compile_definitions(${name}_gpu PRIVATE HILLSTAR_CUDA_IS_EMULATED=false)
    set_tests_properties(${name}_gpu PROPERTIES LABELS gpu
      SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
  endif()
endfunction()
