#!/usr/bin/env bash
# A SLURM of one node on this machine, for trying `launcher=slurm`: Debian's packages, daemons of our own, no systemd.
#
#   scripts/slurm_single_node.sh start [FOLDER]   install what is missing, start munged, slurmctld and slurmd
#   scripts/slurm_single_node.sh stop [FOLDER]    stop them
#
# FOLDER (default /tmp/kvbench-slurm) holds configuration, keys, logs and state; the machine's own files under /etc are
# not touched. After `start`, in every shell that uses it: export SLURM_CONF=FOLDER/slurm.conf
# Needs root, for apt-get and because slurmd starts jobs as other users. Processes are tracked by their parents
# (proctrack/linuxproc) and nothing is confined (task/none), so that it also runs where there are no control groups.
set -euo pipefail

command=${1:-}
folder=$(realpath -m "${2:-/tmp/kvbench-slurm}")
processors=${KVBENCH_SLURM_PROCESSORS:-$(nproc)}

say() { printf 'slurm: %s\n' "$*" >&2; }

install_packages() {
  if command -v slurmctld > /dev/null && command -v slurmd > /dev/null && command -v munged > /dev/null; then return; fi
  say "installing slurm-wlm and munge"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends slurm-wlm munge > "$folder/apt.log" 2>&1 \
    || { tail -n 20 "$folder/apt.log" >&2; exit 1; }
}

configure() {
  mkdir -p "$folder"/{state,spool,munge}
  chown -R munge:munge "$folder/munge"
  chmod 700 "$folder/munge"
  if [ ! -s "$folder/munge/key" ]; then
    head -c 1024 /dev/urandom > "$folder/munge/key"
    chown munge:munge "$folder/munge/key"
    chmod 400 "$folder/munge/key"
  fi
  mkdir -p "$folder/socket"
  chown munge:munge "$folder/socket"
  chmod 755 "$folder/socket"
  echo "Name=bench Count=2" > "$folder/gres.conf"  # a generic resource without devices
  # cred_expire is also how long a requeued job waits before it starts again.
  cat > "$folder/slurm.conf" << END
ClusterName=single
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$folder/socket/munge,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=bf_interval=5,sched_interval=5
ReturnToService=2
JobRequeue=1
KillWait=5
OverTimeLimit=0
MinJobAge=600
GresTypes=bench
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$processors Gres=bench:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=FORCE:4 State=UP
END
}

start() {
  [ "$(id -u)" = 0 ] || { say "start needs root"; exit 1; }
  mkdir -p "$folder"
  install_packages
  configure
  export SLURM_CONF=$folder/slurm.conf
  runuser -u munge -- munged --socket "$folder/socket/munge" --key-file "$folder/munge/key" \
    --log-file "$folder/munge/log" --pid-file "$folder/munge/pid" --seed-file "$folder/munge/seed"
  slurmctld
  slurmd
  for _ in $(seq 60); do
    if [ "$(sinfo -h -o %T 2> /dev/null)" = idle ]; then
      say "ready: export SLURM_CONF=$folder/slurm.conf"
      return
    fi
    sleep 0.5
  done
  say "the node did not come up; logs in $folder"
  tail -n 20 "$folder/slurmctld.log" "$folder/slurmd.log" >&2
  stop
  exit 1
}

# Each daemon by the process id that it wrote itself, and only while that process is one.
stop() {
  local name file pid
  for name in slurmd slurmctld munged; do
    file=$folder/$name.pid
    [ "$name" != munged ] || file=$folder/munge/pid
    pid=$(cat "$file" 2> /dev/null) || continue
    if [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = "$name" ]; then
      kill "$pid"
      for _ in $(seq 40); do kill -0 "$pid" 2> /dev/null || break; sleep 0.25; done
      say "stopped $name"
    fi
    rm -f "$file"
  done
}

case $command in
  start) start ;;
  stop) stop ;;
  *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
