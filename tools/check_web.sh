#!/usr/bin/env bash
# The page's sources have right types, and web/dist is what they give, byte by byte. Exits 77 (skipped)
# where web/node_modules is missing; tools/setup.sh npm fetches it.
#   tools/check_web.sh          compare
#   tools/check_web.sh update   build web/dist anew
set -euo pipefail
cd "$(dirname "$0")/../web"
tests/can_run.sh

node_modules/.bin/tsc --noEmit
if [ "${1:-}" = update ]; then
  node_modules/.bin/vite build --logLevel warn
  exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
node_modules/.bin/vite build --logLevel error --outDir "$work/dist" --emptyOutDir
if ! diff -rq dist "$work/dist"; then
  echo "web/dist is not what its sources give: run tools/check_web.sh update and commit the result" >&2
  exit 1
fi
# What the page costs over a slow network.
num_bytes=$(gzip -9 -c dist/assets/app.js | wc -c)
[ "$num_bytes" -lt 150000 ] || { echo "app.js has $num_bytes bytes, compressed; the limit is 150000" >&2; exit 1; }
if grep -qE '"resolved"' package-lock.json; then
  echo "web/package-lock.json names download addresses; they hold on the machine that wrote it only" >&2
  exit 1
fi
echo "web/dist is what its sources give; its script has $num_bytes bytes, compressed"
