#!/usr/bin/env bash
# Start a SLURM of one node, run the tests that need one, stop it. Says why where that cannot be; exit code 77 then.
#
#   scripts/test_slurm.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."

python=${1:-python}
folder=$(mktemp -d /tmp/kvbench-slurm.XXXXXX)

if [ "$(id -u)" != 0 ]; then
  echo "test-slurm: not run: starting SLURM's daemons needs root" >&2
  exit 77
fi
if ! command -v slurmctld > /dev/null && ! command -v apt-get > /dev/null; then
  echo "test-slurm: not run: no SLURM here, and no apt-get to install one" >&2
  exit 77
fi
chmod 755 "$folder"
trap 'scripts/slurm_single_node.sh stop "$folder"; rm -rf "$folder"' EXIT
if ! scripts/slurm_single_node.sh start "$folder"; then
  echo "test-slurm: not run: SLURM could not be installed or started" >&2
  exit 77
fi
export HF_HOME=${HF_HOME:-$folder/hf} SLURM_CONF=$folder/slurm.conf KVBENCH_TEST_SLURM=1
timeout 2400 "$python" -m pytest -q -n 2 -p no:cacheprovider tests/slurm  # two at a time: they mostly wait
