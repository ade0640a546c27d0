#!/usr/bin/env bash
# Checks and measures the CUDA backend on a GPU, in one run, and prints a short table last. docs/gpu.md
# has figures that it gave.
#
#   tools/gpu.sh [--build FOLDER] [--demo FOLDER] [--models FOLDER]
#                [--only check|measure|kernels|sanitize|memcheck|racecheck]
#
# --build: a build with nvcc; without it one is made in build-gpu. --demo: the demo model's reference
# outputs (oracle.json), and its checkpoint if it is there, for the tests of that build. --models: where
# the synthetic models lie, or are made (22 and 43 GB): 5 and 9 layers of GLM-5.2's geometry, weights in
# w4. sanitize is memcheck and racecheck. Ends with 1 where something failed or was not there.

set -uo pipefail
script=$(realpath "$0")
cd "$(dirname "$script")/.."

build= demo= models=/dev/shm only=
usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$script"; exit 2; }
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
  ""|check|measure|kernels|sanitize|memcheck|racecheck) ;;
  *)
    echo "$0: --only is check, measure, kernels, sanitize, memcheck or racecheck, not $only" >&2
    exit 2 ;;
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
all_tests() { kernel_tests && ls "$build"/src/engine/*_test_gpu; }
if [ ! -x "$build/hillstar" ] || ! all_tests > /dev/null 2>&1; then
  echo "$0: $build has no program with tests for a GPU: a build with nvcc has them" >&2
  exit 1
fi

check() {
  local test
  for test in $(all_tests); do
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

# TOOL: every program under it, side by side: all tests under memcheck; under racecheck, which takes longer,
# what a program calls Sanitized, if it has that. What takes longer than this is cut off, and says so.
sanitize() {
  local tool=$1 test filter seconds=500
  for test in $(all_tests); do
    filter='*'
    [ "$tool" = racecheck ] && [[ $("$test" --gtest_list_tests) == *Sanitized* ]] && filter='*Sanitized*'
    sanitize_one "$tool" "$test" "$filter" "$seconds" &
  done
  wait
  for test in $(all_tests); do
    note "$(cat "$test.$tool.line")"
    grep -q passed "$test.$tool.line" && continue
    tail -n 15 "$test.$tool.log"
    failed=1
  done
}

# TOOL PROGRAM FILTER SECONDS: what came of it goes to a file beside the program.
sanitize_one() {
  local start=$SECONDS status tests result="FAILED or skipped"
  timeout "$4" compute-sanitizer --tool "$1" --error-exitcode 9 "$2" --gtest_brief=1 \
    --gtest_filter="$3" > "$2.$1.log" 2>&1
  status=$?
  tests=$(grep -oE '[1-9][0-9]* tests? from' "$2.$1.log" | tail -n 1)
  if [ "$status" -eq 124 ]; then
    result="cut off after $4 s"
  elif [ "$status" -eq 0 ] && [ -n "$tests" ] && ! grep -q SKIPPED "$2.$1.log"; then
    result="${tests% from} passed, $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$2.$1.log" | tail -n 1)"
  fi
  echo "$1 $(basename "$2"), $((SECONDS - start)) s: $result" > "$2.$1.line"
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
for tool in memcheck racecheck; do
  { wants "$tool" || wants sanitize; } && sanitize "$tool"
done
wants kernels && kernels
wants measure && measure
echo "--- summary"
cat "$table"
exit "$failed"
