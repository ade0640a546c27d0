#!/usr/bin/env bash
# Checks and measures the CUDA backend on a GPU, in one run, and prints a short table last.
#
#   tools/gpu.sh [--build FOLDER] [--models FOLDER] [--only check|measure|sanitize]
#
# --build: a build with nvcc; without it one is made in build-gpu. --models: where the synthetic models
# lie, or are made (25 to 47 GB each): 5 and 9 layers of GLM-5.2's geometry, weights in w4.
set -uo pipefail
cd "$(dirname "$0")/.."

build= models=/dev/shm only=
while [ $# -gt 0 ]; do
  case "$1" in
    --build) build=$2; shift 2 ;;
    --models) models=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    *) sed -n '2,8p' "$0"; exit 2 ;;
  esac
done
if [ -z "$build" ]; then
  build=build-gpu
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release && ninja -C "$build" || exit 1
fi
hillstar=$build/hillstar
table=$(mktemp)
failed=0

wants() { [ -z "$only" ] || [ "$only" = "$1" ]; }
note() { printf '%s\n' "$*" | tee -a "$table"; }

check() {
  local test
  for test in "$build"/src/ops/*_cuda_test_gpu "$build"/src/engine/cuda_bits_test_gpu; do
    local start=$SECONDS
    if "$test" --gtest_brief=1 > "$test.log" 2>&1; then
      note "$(basename "$test"): $(grep -oE '[0-9]+ tests? (from|ran)' "$test.log" | tail -1), $((SECONDS - start)) s: passed"
    else
      note "$(basename "$test"): FAILED"
      tail -n 25 "$test.log"
      failed=1
    fi
  done
}

sanitize() {
  local tool test
  for tool in memcheck racecheck; do
    for test in "$build"/src/ops/*_cuda_test_gpu; do
      if compute-sanitizer --tool "$tool" --error-exitcode 9 "$test" --gtest_brief=1 \
        > "$test.$tool.log" 2>&1; then
        note "$tool $(basename "$test"): $(tail -n 1 "$test.$tool.log")"
      else
        note "$tool $(basename "$test"): FAILED"
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

measure() {
  local model
  [ -x "$build/bench/linear_speed" ] && "$build/bench/linear_speed" | tee -a "$table"
  [ -x "$build/bench/attend_speed" ] && "$build/bench/attend_speed" | tee -a "$table"
  model=$(synth 5)
  for arguments in "--context 4096 --prompt-tokens 512,2048 --context-tokens 0,2048 --decode-tokens 64 --prefill-chunk 2048"; do
    "$hillstar" bench -m "$model" --device cuda --repeat 3 $arguments 2>&1 | tee -a "$table"
  done
  "$hillstar" bench -m "$model" --device cuda --context 1024 --batch 1,8,64 --decode-tokens 16 2>&1 | tee -a "$table"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | tee -a "$table"
wants check && check
wants sanitize && sanitize
wants measure && measure
echo "--- summary"
cat "$table"
exit "$failed"
