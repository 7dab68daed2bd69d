#!/usr/bin/env bash
# Run the embedded suite, hold it against the last accepted run and the oldest one of a site's folder, add it there and
# draw the page anew.
#
#   scripts/history.sh SITE [settings of kvbench run]
#
# SITE/runs/<time>-<commit>.parquet are the runs, the .json beside each its environment. SITE/index.html and
# SITE/history.json are their history, SITE/latest.html the newest run, SITE/accepted the name of the last one that passed.
# The exit code is 5 where `kvbench gate` or `kvbench report history` fails this run, or is inconclusive
# (KVBENCH_GATE=--allow-undecided). It is added all the same, and never becomes the one to hold others against.
set -euo pipefail
site=$1; shift
suite=("$@")
[ ${#suite[@]} -gt 0 ] || suite=(policy=full,streaming_llm,h2o_obcache,tova_obcache,snapkv,lava score=attn,obcache_joint budget=0.1,0.4
	task=ruler/niah_single_1 task.context_length=512 task.samples=120) # so many prompts show 5 points over all
kvbench=${KVBENCH:-kvbench}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$site/runs"
accepted=$(ls "$site"/runs/*.parquet 2> /dev/null | tail -n 1 || true)
[ ! -f "$site/accepted" ] || accepted=$site/runs/$(cat "$site/accepted")
$kvbench run "${suite[@]}" results.dir="$work/run"
verdict=0
if [ -n "$accepted" ]; then
	$kvbench gate --baseline "$accepted" --current "$work/run" kept=note --format markdown ${KVBENCH_GATE:-} || verdict=$?
fi
name=$(date -u +%Y%m%dT%H%M%SZ)-$(git rev-parse --short=9 HEAD 2> /dev/null || echo unknown)
$kvbench export --format parquet --results "$work/run" --out "$site/runs/$name.parquet"
cp "$(ls "$work"/run/environments/*.json | head -n 1)" "$site/runs/$name.json"
$kvbench report history "$site"/runs/*.parquet --out "$site/index.html" --json "$site/history.json" || verdict=$?
[ "$verdict" -ne 0 ] || echo "$name.parquet" > "$site/accepted"
$kvbench report html --results "$work/run" --out "$site/latest.html"
exit "$verdict"
