# make            build/hillstar
# make chat       install what is missing, build, and talk to the built-in model
# make check      install what is missing, build everything, and run every test
# make setup      install what building and testing needs
# make format     format the sources
# make asan       build with address and undefined-behaviour checks and run every test
# make tsan       build with thread checks and run every test but kernels on the emulated device, whose
#                 threads are fibers of one thread: nothing to race, and hours of switching
# make fuzz       run each parser on random input for FUZZ_SECONDS
#
# DEMO=FOLDER     the demo model's checkpoint with its reference outputs; tests that need it skip
#                 without it

DEMO ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 60

# Silent unless it fails: what CMake finds is of interest only then.
configure = output=$$(cmake --preset $(1) -DHILLSTAR_DEMO_CHECKPOINT=$(DEMO) 2>&1) || \
  { status=$$?; printf '%s\n' "$$output" >&2; exit $$status; }
test = ctest --test-dir $(1) -L cpu -j $(JOBS) --output-on-failure --no-label-summary

.PHONY: all chat check setup format asan tsan fuzz

all:
	@tools/setup.sh check build
	@$(call configure,release)
	@cmake --build build -j $(JOBS) --target hillstar
	@echo "build/hillstar is ready. Try: build/hillstar chat"

chat:
	@tools/setup.sh install build
	@$(call configure,release)
	@cmake --build build -j $(JOBS) --target hillstar
	@build/hillstar chat

check:
	@[ -n "$(DEMO)" ] || echo "Without DEMO=FOLDER the tests on the demo model's checkpoint are skipped."
	@tools/setup.sh install test
	@tools/setup.sh npm
	@$(call configure,release)
	@cmake --build build -j $(JOBS)
	@$(call test,build)

setup:
	@tools/setup.sh install test
	@tools/setup.sh npm

format:
	@git ls-files --cached --others --exclude-standard '*.cc' '*.h' '*.cu' '*.cuh' | \
	  xargs clang-format -i

asan:
	@tools/setup.sh install test
	@tools/setup.sh npm
	@$(call configure,debug)
	@cmake --build build-debug -j $(JOBS)
	@$(call test,build-debug)

tsan:
	@tools/setup.sh install test
	@tools/setup.sh npm
	@$(call configure,tsan)
	@cmake --build build-tsan -j $(JOBS)
	@$(call test,build-tsan) -E _emulated

fuzz:
	@tools/setup.sh install fuzz
	@$(call configure,fuzz)
	@cmake --build build-fuzz -j $(JOBS) --target fuzzers
	@tools/fuzz.sh build-fuzz $(FUZZ_SECONDS)
