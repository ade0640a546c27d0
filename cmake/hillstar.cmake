# hillstar_library(NAME SOURCES ... DEPS ...): a static library of one folder.
function(hillstar_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# hillstar_test(NAME [NEEDS_DEMO] SOURCES ... DEPS ... [TIMEOUT SECONDS]): a GoogleTest program under
# label cpu. NEEDS_DEMO: all of it needs the demo checkpoint, and ctest shall say so when it is skipped.
function(hillstar_test name)
  cmake_parse_arguments(ARG "NEEDS_DEMO" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(HILLSTAR_SANITIZE)  # thread checks make the forward pass 20 times slower
    math(EXPR ARG_TIMEOUT "10 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    HILLSTAR_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    HILLSTAR_DEMO_CHECKPOINT="${HILLSTAR_DEMO_CHECKPOINT}"
    HILLSTAR_BINARY="$<$<TARGET_EXISTS:hillstar>:$<TARGET_FILE:hillstar>>")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS cpu TIMEOUT ${ARG_TIMEOUT})
  if(ARG_NEEDS_DEMO)  # skipped tests must not count as passed
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
  endif()
endfunction()

# hillstar_fuzzer(NAME SOURCES ... DEPS ...): a libFuzzer program, built with HILLSTAR_FUZZ only.
function(hillstar_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(NOT HILLSTAR_FUZZ)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  add_dependencies(fuzzers ${name})
endfunction()
