#!/bin/bash
# A study on nodes of a Slurm cluster. In the folder of this project, with recallmap[ray] installed in .venv:
#
#   sbatch search/cluster/slurm.sh hybrid_search --set budget=mini
#
# What follows the study goes to `recallmap run`. Out of time or killed: submit the same again, and it goes on.
#SBATCH --job-name=recallmap
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

study=$1
shift
cd "$SLURM_SUBMIT_DIR"
PATH=$PWD/.venv/bin:$PATH
name=$(basename "$study" .yaml)

# One secret for this job alone; srun hands the environment on.
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_USAGE_STATS_REPORT_URL=http://127.0.0.1:9/

# The ledger must lie on a disk of this node, because SQLite cannot keep its promises on a network file system. It is
# fetched from runs/ and brought back however the job ends.
place=$(mktemp -d "${SLURM_TMPDIR:-/tmp}/ledger-XXXXXX")
bring_home() {
  mkdir -p runs
  cp "$place/$name".* runs/ 2>/dev/null || true
  rm -r "$place"
}
trap bring_home EXIT
for file in "runs/$name.sqlite" "runs/$name.sqlite-wal" "runs/$name.journal"; do
  if [ -e "$file" ]; then cp "$file" "$place/"; fi
done

head=$(hostname)
address=$(hostname --ip-address | awk '{print $1}'):$((20000 + SLURM_JOB_ID % 10000))
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  ray start --head --node-ip-address="${address%:*}" --port="${address#*:}" --include-dashboard=false --block &
for _ in $(seq 60); do
  if ray status --address="$address" >/dev/null 2>&1; then break; fi
  sleep 2
done
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
    ray start --address="$address" --block &
fi

recallmap run "$study" --ledger "$place/$name.sqlite" --engine ray --address "$address" "$@" &
driver=$!
trap 'kill -TERM "$driver"' TERM # five minutes before the time is over
code=0
wait "$driver" || code=$?
if kill -0 "$driver" 2>/dev/null; then wait "$driver" || code=$?; fi # the first wait ends with the signal
exit "$code"
