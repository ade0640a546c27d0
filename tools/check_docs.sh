#!/usr/bin/env bash
# A path or a symbol that README.md or docs/*.md names in backticks has to exist. Paths begin with
# a folder of the tree, relative links lead somewhere; symbols are written like types and functions here (`RunStep`, `kGroup`).
set -euo pipefail
cd "$(dirname "$0")/.."

words=$(mktemp)
trap 'rm -f "$words"' EXIT
find $(ls -d include src tests tools fuzz bench 2>/dev/null || true) -type f \
  \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) |
  xargs grep -ohE '[A-Za-z_][A-Za-z0-9_]*' | sort -u >"$words"

failed=0
while IFS=: read -r file line name; do
  name=${name//\`/}
  if [[ "$name" =~ ^(src|include|docs|tests|tools|models|cmake|bench|fuzz|web)/[A-Za-z0-9_./*-]*$ ]]; then
    compgen -G "$name" >/dev/null && continue
    echo "$file:$line: there is no $name"
    failed=1
  elif [[ "$name" =~ ^([A-Za-z0-9_]+::)*(k?[A-Z][a-z0-9]+[A-Za-z0-9]*)(\(\))?$ ]]; then
    symbol=${BASH_REMATCH[2]}
    grep -qxF "$symbol" "$words" && continue
    echo "$file:$line: no source has the name $symbol"
    failed=1
  fi
done < <(grep -noE '`[^`]+`' README.md docs/*.md)

# Links that stay in the tree.
while IFS=: read -r file line link; do
  target=${link#*](}
  target=${target%%[)#]*}
  [[ -z "$target" || "$target" == *://* || -e "$(dirname "$file")/$target" ]] && continue
  echo "$file:$line: the link to $target leads nowhere"
  failed=1
done < <(grep -noE '\]\([^)]+\)' README.md docs/*.md)

[ "$failed" -eq 0 ] && echo "every path and symbol named in the docs exists"
exit "$failed"
