#!/usr/bin/env bash
# Run the embedded suite, hold it against the last accepted run of a site's folder, add it there and draw the page anew.
#
#   scripts/history.sh SITE [settings of kvbench run]
#
# SITE/runs/<time>-<commit>.parquet are the runs, SITE/index.html and SITE/history.json their history, SITE/latest.html the
# newest one, SITE/accepted the name of the last run that passed. The exit code is the gate's: 5 where this run is worse
# than that one. It is added all the same, and never becomes the one to hold others against.
set -euo pipefail
site=$1; shift
suite=("$@")
[ ${#suite[@]} -gt 0 ] || suite=(policy=full,streaming_llm,h2o,tova,snapkv,lava score=attn,obcache_joint budget=0.1,0.2,0.4
	task=ruler/niah_single_1 task.context_length=512 task.samples=50)
kvbench=${KVBENCH:-kvbench}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$site/runs"
accepted=$(ls "$site"/runs/*.parquet 2> /dev/null | tail -n 1 || true)
[ ! -f "$site/accepted" ] || accepted=$site/runs/$(cat "$site/accepted")
$kvbench run "${suite[@]}" results.dir="$work/run"
verdict=0
if [ -n "$accepted" ]; then
	$kvbench gate --baseline "$accepted" --current "$work/run" kept=note --format markdown || verdict=$?
fi
name=$(date -u +%Y%m%dT%H%M%SZ)-$(git rev-parse --short=9 HEAD 2> /dev/null || echo unknown)
$kvbench export --format parquet --results "$work/run" --out "$site/runs/$name.parquet"
$kvbench report history "$site"/runs/*.parquet --out "$site/index.html" --json "$site/history.json"
[ "$verdict" -ne 0 ] || echo "$name.parquet" > "$site/accepted"
$kvbench report html --results "$work/run" --out "$site/latest.html"
exit "$verdict"
