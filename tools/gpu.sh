#!/usr/bin/env bash
# Checks and measures the CUDA backend on a GPU, in one run, and prints a short table last. docs/gpu.md
# has figures that it gave.
#
#   tools/gpu.sh [--build FOLDER] [--demo FOLDER] [--models FOLDER]
#                [--only check|measure|kernels|sanitize]
#
# --build: a build with nvcc; without it one is made in build-gpu. --demo: the demo model's reference
# outputs (oracle.json), and its checkpoint if it is there, for the tests of that build. --models: where
# the synthetic models lie, or are made (22 and 43 GB): 5 and 9 layers of GLM-5.2's geometry, weights in
# w4. Ends with 1 where something failed or was not there.

set -uo pipefail
cd "$(dirname "$0")/.."

build= demo= models=/dev/shm only=
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit 2; }
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || usage
  case "$1" in
    --build) build=$2 ;;
    --demo) demo=$(realpath "$2") ;;
    --models) models=$2 ;;
    --only) only=$2 ;;
    *) usage ;;
  esac
  shift 2
done
case "$only" in
  ""|check|measure|kernels|sanitize) ;;
  *) echo "$0: --only is check, measure, kernels or sanitize, not $only" >&2; exit 2 ;;
esac
if ! nvidia-smi -L 2> /dev/null | grep -q '^GPU'; then
  echo "$0: there is no GPU to compute on: nvidia-smi lists none" >&2
  exit 1
fi
if [ -z "$build" ]; then
  build=build-gpu
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release || exit 1
fi
if [ -n "$demo" ]; then
  cmake -S . -B "$build" -DHILLSTAR_DEMO_CHECKPOINT="$demo" > /dev/null || exit 1
fi
if [ "$build" = build-gpu ] || [ -n "$demo" ]; then
  ninja -C "$build" || exit 1
fi
hillstar=$build/hillstar
table=$(mktemp)
failed=0

wants() { [ -z "$only" ] || [ "$only" = "$1" ]; }
note() { printf '%s\n' "$*" | tee -a "$table"; }

kernel_tests() { ls "$build"/src/device/cuda/*_test_gpu "$build"/src/ops/*_test_gpu; }
if [ ! -x "$build/hillstar" ] || ! kernel_tests > /dev/null 2>&1; then
  echo "$0: $build has no program with tests for a GPU: a build with nvcc has them" >&2
  exit 1
fi

check() {
  local test
  for test in $(kernel_tests) "$build"/src/engine/cuda_bits_test_gpu \
              "$build"/src/engine/cuda_oracle_test_gpu; do
    local start=$SECONDS
    if "$test" --gtest_brief=1 > "$test.log" 2>&1 && ! grep -q SKIPPED "$test.log"; then
      note "$(basename "$test"): $(grep -oE '[0-9]+ tests? (from|ran)' "$test.log" | tail -1), $((SECONDS - start)) s: passed"
    else
      note "$(basename "$test"): FAILED or skipped"
      tail -n 25 "$test.log"
      failed=1
    fi
    if grep 'sha256' "$test.log"; then
      note "$(basename "$test"): $(grep -c 'the same' "$test.log") times the CPU's sha256 of logits"
    fi
  done
}

# Under the tools a test runs what it calls Sanitized, if it has that, else everything; what takes
# longer than this is cut off, and says so.
sanitize() {
  local tool test status filter seconds=120
  for tool in memcheck racecheck; do
    for test in $(kernel_tests); do
      filter='*'
      [[ $("$test" --gtest_list_tests) == *Sanitized* ]] && filter='*Sanitized*'
      local start=$SECONDS
      timeout "$seconds" compute-sanitizer --tool "$tool" --error-exitcode 9 "$test" --gtest_brief=1 \
        --gtest_filter="$filter" > "$test.$tool.log" 2>&1
      status=$?
      if [ "$status" -eq 0 ] && ! grep -q SKIPPED "$test.$tool.log"; then
        note "$tool $(basename "$test"), $((SECONDS - start)) s: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$test.$tool.log" | tail -n 1)"
      elif [ "$status" -eq 124 ]; then
        note "$tool $(basename "$test"): cut off after $seconds s"
        failed=1
      else
        note "$tool $(basename "$test"): FAILED or skipped"
        tail -n 15 "$test.$tool.log"
        failed=1
      fi
    done
  done
}

# synth LAYERS: the model's folder, made where it is missing.
synth() {
  local folder=$models/glm-$1
  [ -f "$folder/hillstar.json" ] ||
    "$hillstar" synth "$folder" --layers "$1" --experts w4 --dense w4 > /dev/null 2>&1
  echo "$folder"
}

kernels() {
  local speed
  for speed in linear attend draw select; do
    "$build/bench/${speed}_speed" | tee -a "$table" || failed=1
  done
}

# bench MODEL ARGUMENTS...
bench() {
  note "bench $(basename "$1") ${*:2}"
  "$hillstar" bench -m "$1" --device cuda --repeat 3 "${@:2}" 2>&1 | tee -a "$table" || failed=1
}

measure() {
  local five nine
  five=$(synth 5)
  bench "$five" --context 8192 --prompt-tokens 2048 --context-tokens 6000,0 --prefill-chunk 2048
  bench "$five" --context 1024 --batch 1,8,64 --decode-tokens 16
  bench "$five" --kv-format q8 --synthetic-context 262144
  bench "$five" --kv-format q8 --attention dense --synthetic-context 262144
  nine=$(synth 9)
  # The difference of a decode step is four MoE layers, none of which selects. Prefill in chunks of
  # the default size.
  bench "$five" --context 2048 --prompt-tokens 2048 --context-tokens 0
  bench "$nine" --context 2048 --prompt-tokens 2048 --context-tokens 0
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee -a "$table"
wants check && check
wants sanitize && sanitize
wants kernels && kernels
wants measure && measure
echo "--- summary"
cat "$table"
exit "$failed"
