#!/usr/bin/env bash
# Exits 77 and says why where the tests cannot run: no npm packages, or an older Node than Vite takes;
# with the argument "browser" also where there is no Chromium.
set -euo pipefail
cd "$(dirname "$0")/.."
skip() { echo "skipped: $1" >&2; exit 77; }
command -v node >/dev/null || skip "node is not installed"
node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' ||
  skip "Node $(node --version) is older than 20.19"
[ -f node_modules/.package-lock.json ] || skip "web/node_modules is missing; tools/setup.sh npm fetches it"
[ "${1:-}" != browser ] || [ -x /usr/bin/chromium ] || skip "Chromium is not installed"
