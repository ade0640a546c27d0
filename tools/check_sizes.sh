#!/usr/bin/env bash
# Functions have at most 80 lines (kernels 250), files 800.
set -euo pipefail
cd "$(dirname "$0")/.."

find $(ls -d include src tests fuzz bench 2>/dev/null || true) -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) \
  -not -path '*/node_modules/*' | sort |
  xargs awk '
    FNR == 1 {
      check_file()
      file = FILENAME; depth = 0; in_function = 0; in_raw = 0; statement = ""
      limit = file ~ /(_cpu\.cc|_cuda\.cu|\.cuh)$|simd/ ? 250 : 80
    }
    {
      lines = FNR
      text = $0
      # Raw strings, strings, characters and comments hold braces that do not count.
      if (in_raw) {
        if (!match(text, /\)[a-z]*"/)) next
        text = substr(text, RSTART + RLENGTH); in_raw = 0
      }
      gsub(/R"[a-z]*\([^)]*\)[a-z]*"/, "s", text)
      if (match(text, /R"[a-z]*\(/)) { text = substr(text, 1, RSTART - 1); in_raw = 1 }
      gsub(/\\./, "", text)
      gsub(/"[^"]*"/, "s", text)
      gsub(/\47[{}";\/]\47/, "c", text)
      sub(/\/\/.*/, "", text)
      if (text ~ /^#/) next
      while (match(text, /[{};]/)) {
        mark = substr(text, RSTART, 1)
        statement = statement substr(text, 1, RSTART - 1) " "
        text = substr(text, RSTART + 1)
        if (mark == "{") {
          ++depth
          if (!in_function && statement ~ /\)/ &&
              statement !~ /(^|[^A-Za-z_])(namespace|struct|class|enum|union)[^A-Za-z_]/ &&
              statement !~ /= *$/) {
            in_function = depth; first = FNR
          }
        } else if (mark == "}") {
          if (in_function == depth) {
            length_of = FNR - first + 1
            if (length_of > limit) {
              print file ":" first ": a function of " length_of " lines; the limit is " limit
              failed = 1
            }
            in_function = 0
          }
          --depth
        }
        statement = ""
      }
      statement = statement text " "
    }
    function check_file() {
      if (lines > 800) { print file ": " lines " lines; the limit is 800"; failed = 1 }
      lines = 0
    }
    END { check_file(); exit failed }
  '
echo "no function and no file is too long"
