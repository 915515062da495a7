#!/usr/bin/env bash
# Looks up known vulnerabilities of what the programs link.
#
#   hack/vuln.sh [--release]
#
# A vulnerable function counts where it is in a program: the linker leaves out what nothing calls. One of a
# module fails. Those of Go's own library are only told, as who builds cures them, with a newer Go; --release
# fails on them, too.
#
# The database is $GOVULNDB, or the one that is published, or where that cannot be reached the newest version of
# the Go module that it is published from, which may be some weeks older. Without any, nothing was checked, and
# this fails.
set -euo pipefail
cd "$(dirname "$0")/.."

release=
[[ ${1:-} != --release ]] || release=yes
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT

published=https://vuln.go.dev
unreachable() {
  echo "vuln: the vulnerability database cannot be reached: nothing was checked; set GOVULNDB to a copy of it" >&2
  exit 1
}
if [[ -n ${GOVULNDB:-} ]]; then
  database=$GOVULNDB
elif curl -fsS --max-time 10 -o "$temp/db.json" "$published/index/db.json" 2>/dev/null; then
  database=$published
else
  module=$(cd "$temp" && go mod download -json golang.org/x/vulndb@latest 2>/dev/null) || unreachable
  database=file://$(jq -r .Dir <<<"$module")/data/osv
  echo "vuln: $published cannot be reached; using $(jq -r '.Path + " " + .Version' <<<"$module")"
fi

# With symbols, which the programs that are shipped lack.
CGO_ENABLED=0 go build -trimpath -o "$temp/" ./cmd/...
for program in adapter engine-emulator; do
  bin/govulncheck -mode binary -format json -db "$database" "$temp/$program" >"$temp/$program.json" ||
    { echo "vuln: govulncheck failed: nothing was checked" >&2; exit 1; }
  # Of Go's library alone there are hundreds, also where they are all fixed.
  jq -es '[.[].osv | select(.)] | length > 0' "$temp/$program.json" >/dev/null ||
    { echo "vuln: the vulnerability database at $database is empty: nothing was checked" >&2; exit 1; }
  jq -rs '([.[].osv | select(.) | {key: .id, value: .summary}] | from_entries) as $summary
    | .[].finding | select(. and .trace[0].function)
    | "\(.trace[0].module)@\(.trace[0].version): \(.osv), fixed in \(.fixed_version // "no version"): \($summary[.osv])"' \
    "$temp/$program.json"
done | sort -u >"$temp/found"

status=0
if grep -v '^stdlib@' "$temp/found" >"$temp/modules"; then
  echo "vuln: modules have known vulnerabilities; upgrade them:" >&2
  cat "$temp/modules" >&2
  status=1
fi
if grep '^stdlib@' "$temp/found" >"$temp/go"; then
  echo "vuln: the library of $(go env GOVERSION) has known vulnerabilities; build with a newer Go what you release:" >&2
  cat "$temp/go" >&2
  [[ -z $release ]] || status=1
fi
((status)) || echo "vuln: no known vulnerability of a module is in the programs"
exit "$status"
