#!/usr/bin/env bash
# The page in Chromium as the program serves it, with the built-in model:
#   tests/served_page_test.sh build/hillstar GROUP
# GROUP is chat, live or access. Exits 77 (skipped) where it cannot run.
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."
tests/can_run.sh browser
work=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
"$program" serve --port 0 >"$work/out" 2>"$work/log" &
server=$!
url=
for _ in $(seq 200); do
  url=$(grep -ohE 'http://127\.0\.0\.1:[0-9]+/' "$work/out" "$work/log" | head -1 || true)
  [ -z "$url" ] || break
  kill -0 "$server" 2>/dev/null || break
  sleep 0.1
done
[ -n "$url" ] || { echo "the server did not start:"; cat "$work/out" "$work/log"; exit 1; }
node --test-reporter=spec tests/page_test.mjs --server "$url" --only "$2"
