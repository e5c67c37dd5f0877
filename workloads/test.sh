#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Runs every built workload here: test.sh DIRECTORY. Workloads that need missing programs are
# skipped with a message; a test of the lab (lab/boot.rs) runs all of them in a guest.
set -euo pipefail
bin=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
# `make check` would lend its own settings to the make that `build` runs.
unset O MAKEFLAGS MAKELEVEL
# On tmpfs, as metadata asks for.
scratch=$(mktemp -d /dev/shm/holdfast-test-XXXXXX)
# A variable in the environment marks every process of this test.
export HOLDFAST_TEST=$scratch
trap 'kill -KILL $(of_this_test) 2>/dev/null || true; rm -rf "$scratch"' EXIT

# A compiler of one process, as tcc is: gcc starts others, which `build` does not see.
compiler=$(command -v "${BPF_CLANG:-clang}" | head -n 1 || true)

fail() {
	echo "FAILED: $*" >&2
	exit 1
}

# Running processes of this test, without this shell and the search itself.
of_this_test() {
	local pid comm
	for pid in $(grep -slz "^HOLDFAST_TEST=$scratch$" /proc/[0-9]*/environ | cut -d/ -f3); do
		comm=$(cat "/proc/$pid/comm" 2>/dev/null) || continue
		[ "$comm" = "$(cat /proc/$$/comm)" ] || echo "$pid"
	done
}

# Prints: magic, version, slots, operations, histogram entries.
counters() {
	od -A n -v -t u8 -w8 "$1" | awk '
		NR == 1 { magic = $1 % 4294967296; version = int($1 / 4294967296) }
		NR == 2 { slots = $1 % 4294967296 }
		NR > 8 { word = (NR - 9) % 128 }
		NR > 8 && word == 0 { ops += $1 }
		NR > 8 && word >= 8 && word < 72 { hist += $1 }
		END { print magic, version, slots, ops, hist }'
}

# Waits until process $3 has counted $1 operations in file $2, and timed $4 of them.
wait_for_operations() {
	local end=$((SECONDS + 30)) ops hist
	while :; do
		read -r _ _ _ ops hist < <(counters "$2" 2>/dev/null)
		[ "${ops:-0}" -lt "$1" ] || [ "${hist:-0}" -lt "${4:-0}" ] || return 0
		kill -0 "$3" 2>/dev/null || fail "process ended after ${ops:-0} operations"
		[ $SECONDS -lt $end ] || fail "only ${ops:-0} operations and ${hist:-0} times in 30 s"
	done
}

# Ends process $1 of workload $2, which must not take long.
ends_on_sigterm() {
	local end=$((SECONDS + 20))
	kill -TERM "$1"
	while kill -0 "$1" 2>/dev/null; do
		[ $SECONDS -lt $end ] || fail "$2 still runs 20 s after SIGTERM"
	done
	wait "$1" || fail "$2 ended with $?, not 0"
}

nothing_is_left() {
	local end=$((SECONDS + 10))
	while [ -n "$(of_this_test)" ]; do
		[ $SECONDS -lt $end ] || fail "$1 left processes behind: $(of_this_test)"
	done
	! ls -d "$scratch"/holdfast-* 2>/dev/null || fail "$1 left scratch directories behind"
}

# Arguments of each workload beside --counters and --threads for this machine.
options() {
	case $1 in
	metadata | sysbench) echo "--dir $scratch" ;;
	# It builds these very sources.
	build) echo "--dir $scratch --source $here --cc $compiler --cflags -D_GNU_SOURCE" ;;
	esac
}

counts_and_ends_on_sigterm() {
	local name=$1 pid magic version slots ops hist
	"$bin/$name" --counters "$scratch/$name" --threads 4 $(options "$name") &
	pid=$!
	case $name in
	urandom | hackbench | sysbench | irql) wait_for_operations 20 "$scratch/$name" $pid ;;
	*) wait_for_operations 20 "$scratch/$name" $pid 5 ;;
	esac
	ends_on_sigterm $pid "$name"
	nothing_is_left "$name"
	read -r magic version slots ops hist < <(counters "$scratch/$name")
	[ "$magic $version $slots" = "$((0x48464354)) 1 4" ] || fail "$name: header $magic $version $slots"
	case $name in
	# These do not time an operation.
	urandom | hackbench | sysbench | irql) [ "$hist" = 0 ] || fail "$name: $hist histogram entries" ;;
	# It counts bytes read and times compilations.
	build) [ "$ops" -gt "$hist" ] || fail "$name: $ops KiB for $hist objects" ;;
	# A worker may end between the two counts of one operation.
	*)
		[ $((hist - ops)) -ge 0 ] && [ $((hist - ops)) -le 4 ] ||
			fail "$name: $ops operations, $hist in the histogram"
		;;
	esac
	echo "ok: $name counts $ops operations and ends on SIGTERM"
}

refuses_wrong_usage() {
	local name=$1 status wrong
	for wrong in '--threads 0' '--threads 65' '--threads many' '--nonsense' 'stray' '--seconds'; do
		status=0
		"$bin/$name" $wrong 2>"$scratch/error" || status=$?
		[ $status = 2 ] || fail "$name $wrong: exit status $status, not 2"
		grep -q "$name --help" "$scratch/error" || fail "$name $wrong: no hint at --help"
	done
	echo "ok: $name refuses wrong usage"
}

prints_by_hand() {
	"$bin/lock" --seconds 1 --print > "$scratch/print"
	awk 'NR == 1 { ops = $1; next } / -> / { sub(/.* : /, ""); sum += $1 }
		END { exit !(ops > 0 && sum >= ops && sum <= ops + 4) }' "$scratch/print" ||
		fail "lock --print does not add up: $(cat "$scratch/print")"
	echo 'ok: --print shows a histogram of all operations'
}

runs_twice() {
	local first second status=0
	"$bin/metadata" --counters "$scratch/first" --dir "$scratch" &
	first=$!
	wait_for_operations 1 "$scratch/first" $first
	timeout 20 "$bin/metadata" --counters "$scratch/first" --dir "$scratch" \
		2>"$scratch/error" || status=$?
	[ $status = 1 ] || fail "a second workload on one counter file: exit status $status, not 1"
	"$bin/metadata" --counters "$scratch/second" --dir "$scratch" &
	second=$!
	wait_for_operations 1 "$scratch/second" $second
	ends_on_sigterm $first 'the first of two instances'
	read -r _ _ _ before _ < <(counters "$scratch/second")
	wait_for_operations $((before + 1)) "$scratch/second" $second
	ends_on_sigterm $second 'the second of two instances'
	nothing_is_left 'two instances'
	echo 'ok: two instances run side by side, and never on one counter file'
}

leaves_nothing_when_killed() {
	local pid
	# A compiler that loses its directory complains.
	"$bin/$1" --counters "$scratch/killed" $(options "$1") 2>/dev/null &
	pid=$!
	wait_for_operations 1 "$scratch/killed" $pid
	kill -KILL $pid
	wait $pid 2>/dev/null || true
	# The scratch directory stays: its owner is gone.
	rm -rf "$scratch"/holdfast-*
	nothing_is_left "$1, killed,"
	echo "ok: no process of $1 survives its SIGKILL"
}

# Prints why a workload cannot run here, if it cannot.
obstacle() {
	case $1 in
	hackbench) [ -x /usr/bin/hackbench ] || echo 'the package rt-tests is not installed' ;;
	sysbench) [ -x /usr/bin/sysbench ] || echo 'the package sysbench is not installed' ;;
	build) [ -n "$compiler" ] || echo 'clang is not installed' ;;
	stealwitness) [ -r /proc/kcore ] || echo 'this is no KVM guest with /proc/kcore' ;;
	# Where KVM itself is emulated there may be a /dev/kvm that runs a thousand times too slowly.
	hostile)
		"$bin/hostile" --seconds 1 --print 2>/dev/null | awk '{ exit !($1 >= 20) }' ||
			echo 'KVM cannot be used here'
		;;
	irql)
		"$bin/irql" --seconds 1 --print 2>/dev/null | awk '{ exit !($1 >= 1000) }' ||
			echo 'KVM cannot be used here'
		;;
	esac
}

for path in "$bin"/*; do
	name=$(basename "$path")
	refuses_wrong_usage "$name"
	if [ -n "$(obstacle "$name")" ]; then
		echo "skipped: $name, as $(obstacle "$name")"
	else
		counts_and_ends_on_sigterm "$name"
	fi
done
prints_by_hand
runs_twice
leaves_nothing_when_killed fork
[ -n "$(obstacle build)" ] || leaves_nothing_when_killed build
echo "all tests of the workloads passed"
