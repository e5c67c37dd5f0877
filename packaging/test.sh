#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Installs the built programs and tries them in place: test.sh, after `make build`.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
# `make test` would pass its own settings to the make below.
unset MAKEFLAGS MAKELEVEL
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/opt

fail() {
	echo "FAILED: $*" >&2
	exit 1
}

make -s install PREFIX="$prefix" >"$scratch/log"

# No machine can run this experiment. The lab refuses it after it has found its programs.
experiments=$prefix/share/holdfast/experiments
sed 's/"machine"/"instructions"/' "$experiments/smoke.toml" >"$scratch/counting.toml"
cd "$scratch"
code=0
said=$("$prefix/bin/holdfast" lab run counting.toml --accel kvm 2>&1) || code=$?
[[ $code = 2 && $said == *"--accel tcg"* ]] || fail "the installed lab said ($code): $said"
[ ! -e results ] || fail "a run that was refused left $(find results)"
cd - >/dev/null
echo "ok: the installed program finds its lab"

units=$prefix/lib/systemd/system
condition() {
	grep -qx "Condition$2" "$units/$1" || fail "$1 lacks Condition$2"
}
condition scx_holdfast.service PathExists=/sys/kernel/sched_ext
condition holdfast-export.service PathExists=/sys/module/kvm
condition holdfast-record.service PathExists=/sys/module/kvm
for unit in "$units"/*.service; do
	condition "$(basename "$unit")" 'Virtualization=!container'
	program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$unit")
	[ -x "$program" ] || fail "$unit starts $program, which is not installed"
done
if command -v systemd-analyze >/dev/null; then
	export MANPATH=$prefix/share/man
	said=$(systemd-analyze verify "$units"/*.service 2>&1) && [ -z "$said" ] || fail "units: $said"
	for unit in "$units"/*.service; do
		said=$(systemd-analyze security --no-pager --offline=yes --threshold=25 "$unit" 2>&1) ||
			fail "$unit is exposed: $said"
	done
	unset MANPATH
	echo "ok: units"
else
	echo "skipped: systemd-analyze is not installed; units start installed programs"
fi

pages=$prefix/share/man
[ -f "$pages/man1/holdfast-report.1" ] && [ -f "$pages/man8/scx_holdfast.8" ] || fail "man pages"
grep -q "$prefix/lib/holdfast" "$pages/man1/holdfast.1" || fail "man pages name other places"
for page in "$pages"/man*/*; do
	# Pages have no date, which would make each build another one.
	said=$({
		man --warnings -l "$page" >/dev/null
		groff -ww -man -Tutf8 "$page" >/dev/null
		mandoc -Tlint -W warning "$page"
	} 2>&1 | grep -v 'missing date\|command not found' || true)
	[ -z "$said" ] || fail "$said"
done
for shell in bash:bash-completion/completions/holdfast zsh:zsh/site-functions/_holdfast \
	fish:fish/vendor_completions.d/holdfast.fish; do
	script=$prefix/share/${shell#*:}
	[ -f "$script" ] || fail "no $script"
	! command -v "${shell%%:*}" >/dev/null || "${shell%%:*}" -n "$script" || fail "$script"
done
complete=$(bash -c '. "$1"; COMP_WORDS=(holdfast repo) COMP_CWORD=1
	_holdfast holdfast repo holdfast; echo "${COMPREPLY[*]}"' - \
	"$prefix/share/bash-completion/completions/holdfast")
[ "$complete" = report ] || fail "bash completes repo to: $complete"
echo "ok: man pages and completions"

# Packagers install into a directory that differs from the final one.
make -s install PREFIX=/usr DESTDIR="$scratch/package" >>"$scratch/log"
lib=$scratch/package/usr/lib
cmp packaging/systemd/scx_holdfast.service "$lib/systemd/system/scx_holdfast.service"
[ "$(readlink "$lib/holdfast/holdfast")" = ../../bin/holdfast ] ||
	fail "the lab's holdfast is not that of DESTDIR"

# A path is refused before anything is removed or made.
mkdir "$scratch/my"
for path in "$scratch/my apps" "$scratch/a;b" "$scratch/R&D" relative; do
	for goal in install uninstall; do
		! make -s $goal PREFIX="$path" >>"$scratch/log" 2>&1 || fail "make $goal took PREFIX=$path"
	done
done
[ -d "$scratch/my" ] || fail "make uninstall removed another directory"

make -s uninstall PREFIX="$prefix"
make -s uninstall PREFIX=/usr DESTDIR="$scratch/package"
left=$(find "$prefix" "$scratch/package" -not -type d)
[ -z "$left" ] || fail "make uninstall left $left"
echo "ok: make uninstall"
