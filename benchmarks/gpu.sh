#!/usr/bin/env bash
# On a machine with a GPU, one call: bash benchmarks/gpu.sh [-s SECONDS] [-o FOLDER] PART...
# Parts: tests, or the name of a benchmark with its options, as "influence --part edges". Each gets what time is left;
# what does not end in time is interrupted, and keeps what it had written. Results and logs lie in FOLDER.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.."
SECONDS=0 END=540 OUT=${OUT:-sightline-bench}
while getopts s:o: option; do case $option in s) END=$OPTARG ;; o) OUT=$OPTARG ;; *) exit 2 ;; esac; done
shift $((OPTIND - 1))
mkdir -p "$OUT"
# One process compiles for itself: a pool of compilers in each of many workers would be more processes than cores.
export PYTHONUNBUFFERED=1 PYTHONPATH=src TORCHINDUCTOR_COMPILE_THREADS=1
PYTHON=${PYTHON:-python3} WORKERS=${WORKERS:-$(($(nproc) - 1))}

part() { # a name, a command: its log, how it ended, what failed and its last lines
  local name=$1 began=$SECONDS left=$((END - SECONDS)) rc=0
  shift
  [ "$left" -ge 20 ] || { echo "== $name: no time left"; return; }
  timeout -s INT -k 5 "$left" "$@" > "$OUT/$name.log" 2>&1 || rc=$?
  echo "== $name: ended with $rc after $((SECONDS - began)) s"
  grep -aE '^(FAILED|ERROR) ' "$OUT/$name.log" | cut -c1-300 | head -60
  tail -n 12 "$OUT/$name.log" | cut -c1-300
}

for what in "$@"; do
  read -ra words <<< "$what"
  name=${words[0]}
  if [ "$name" = tests ]; then
    part tests "$PYTHON" -m pytest "${words[@]:1}" tests/gpu -n "$WORKERS" --dist worksteal -p no:benchmark -p no:cacheprovider \
      -v --tb=short --durations=15 --junitxml "$OUT/tests.xml"
    "$PYTHON" tests/record.py --by-file "$OUT/tests.xml" "$OUT/tests-gpu.json" "bash benchmarks/gpu.sh $what"
    gzip -f "$OUT/tests.log"
  else
    # What is not measured again is kept.
    test -f "$OUT/$name-gpu.json" || cp "benchmarks/results/$name-gpu.json" "$OUT" 2> /dev/null
    part "$name" "$PYTHON" "benchmarks/$name.py" "${words[@]:1}" --out "$OUT"
  fi
done
