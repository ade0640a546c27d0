#!/usr/bin/env bash
# Every C++ file is as clang-format leaves it. Exits 77 (skipped) where there is no clang-format.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v clang-format >/dev/null || { echo "clang-format is not installed"; exit 77; }
find $(ls -d include src tests fuzz bench 2>/dev/null || true) -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) \
  -not -path '*/node_modules/*' | sort |
  xargs clang-format --dry-run -Werror
echo "every file is formatted"
