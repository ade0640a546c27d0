#!/usr/bin/env bash
# Rules that a search can check: no environment variables; file descriptors are opened in
# formats/, experts/ and kv/ only; no OpenMP; CUDA headers in src/device/cuda, .cu files and files that
# have cuda in their name only.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0

# refuse MESSAGE PATTERN FILES...: prints every line that matches, comments left out.
refuse() {
  local message=$1 pattern=$2
  shift 2
  [ $# -gt 0 ] || return 0
  if grep -nE "$pattern" "$@" | grep -vE '^[^:]+:[0-9]+: *//'; then
    echo "^ $message"
    failed=1
  fi
}

mapfile -t sources < <(find include src \( -name '*.h' -o -name '*.cc' \) | sort)
mapfile -t without_files < <(printf '%s\n' "${sources[@]}" |
  grep -vE '^src/(formats|experts|kv)/|_test\.cc$|_test_files\.h$')
mapfile -t without_cuda < <(printf '%s\n' "${sources[@]}" | grep -vE '^src/device/cuda/|/[a-z_]*cuda[a-z_]*\.(h|cc)$')

refuse "environment variables are not read; add an option" \
  '\b(secure_)?getenv\b' "${sources[@]}"
refuse "file descriptors belong in formats/, experts/ or kv/" \
  '(^|[^A-Za-z_.>:])(::)?(open|openat|pread|pwrite)\(' "${without_files[@]}"
refuse "OpenMP is not used; src/core/thread_pool.h runs loops" '#pragma omp' "${sources[@]}"
refuse "CUDA headers belong in src/device/cuda, .cu files and files named after CUDA" \
  '#include <(cuda|cublas|cub/)' "${without_cuda[@]}"

[ "$failed" -eq 0 ] && echo "no rule is broken"
exit "$failed"
