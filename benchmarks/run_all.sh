#!/usr/bin/env bash
# The full matrix: both models, all workloads, all batch sizes, and training; JSON and plots go to results/speed/.
# What is already there is kept, so an interrupted run goes on where it stopped; remove a file to measure it anew.
#   benchmarks/run_all.sh [FOLDER [OPTION...]]   options go to every `hashee speed`, e.g. --rounds 3 --baselines hashee
set -euo pipefail
cd "$(dirname "$0")/.."
: "${HASHEE_DATA:?set HASHEE_DATA to the folder of datasets (SST-2, SNLI, IMDb)}"
export HF_HUB_OFFLINE=1
hashee="${HASHEE:-.venv/bin/hashee}"
out="${1:-results/speed}"
options=("${@:2}")
mkdir -p "$out"

measure() {
  local name="$1"
  shift
  if [ -e "$out/$name.json" ]; then
    echo "$out/$name.json is there already"
    return
  fi
  # The report is written after every batch size; only a finished one gets its name.
  "$hashee" speed --json "$out/.$name.json" --plot "$out/$name.png" "$@" ${options[@]+"${options[@]}"}
  mv "$out/.$name.json" "$out/$name.json"
}

for model in bert-base minilm; do
  for workload in SST-2 SNLI IMDb; do
    measure "$model-$workload" --model "$model" --workload "$workload"
  done
done
measure bert-base-training --training
