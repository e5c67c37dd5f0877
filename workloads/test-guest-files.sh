#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Checks that guest-files.txt is complete: builds a root file system of exactly what it lists and
# runs every workload in it.
#
#   test-guest-files.sh WORKLOADS SYSROOT SOURCES     (as root)
#
# WORKLOADS: the directory of built workloads. SYSROOT: where the listed packages are unpacked.
# SOURCES: holds one unpacked upstream archive per `src:NAME`, as SOURCES/NAME.
set -euo pipefail
list=$(dirname "$0")/guest-files.txt
workloads=$1 sysroot=$2 sources=$3
root=$(mktemp -d /tmp/holdfast-guest-files-XXXXXX)
trap 'umount -R "$root" 2>/dev/null || true; rmdir "$root"' EXIT
mount -t tmpfs -o mode=755 tmpfs "$root"

mkdir -p "$root"/{proc,dev,tmp,usr/bin,usr/lib,usr/lib64,workloads}
for link in bin lib lib64; do ln -s "usr/$link" "$root/$link"; done
while read -r package path arrow target; do
	case $package in '' | '#'*) continue ;; esac
	if [ "$arrow" = '->' ]; then
		mkdir -p "$root$target"
		cp -a "$sources/${package#src:}/$path/." "$root$target/"
	else
		mkdir -p "$root$(dirname "$path")"
		cp -aL "$sysroot${path%/}" "$root$(dirname "$path")/"
	fi
done < "$list"
for name in sh rm true dd cat; do ln -s busybox "$root/usr/bin/$name"; done
cp "$workloads"/* "$root/workloads/"
mount -t tmpfs tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"

du -sh --apparent-size -x "$root"
find "$root" -xdev -type f | wc -l
for workload in "$workloads"/*; do
	name=$(basename "$workload")
	echo "$name"
	env -i "$(command -v chroot)" "$root" "/workloads/$name" --counters /tmp/counters --seconds 2 --print | tee "$root/tmp/log"
	grep -q '^[1-9][0-9]* operations' "$root/tmp/log"
	# Every process of this root is gone.
	! find /proc -maxdepth 2 -name root -lname "$root" 2>/dev/null | grep .
	# And every scratch directory.
	! ls -d "$root"/tmp/holdfast-* 2>/dev/null
done
