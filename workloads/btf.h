/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * As much of BTF (Documentation/bpf/btf.rst) as it takes to find a kernel's per-CPU
 * variables. For blobs that are trusted: the running kernel's own.
 */
#ifndef HOLDFAST_BTF_H
#define HOLDFAST_BTF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct btf {
	const char *types;
	size_t types_len;
	const char *strings;
	size_t strings_len;
	const char *percpu; /* the entries of the section .data..percpu */
	unsigned int nr_percpu;
	uint64_t percpu_len; /* of the section, in bytes */
};

/* False if the blob is not BTF, or has no per-CPU section. It has to outlive *btf. */
bool btf_open(struct btf *btf, const char *blob, size_t len);

/* Where a per-CPU variable lies in the section, and how long it is. */
struct btf_var {
	uint64_t offset;
	uint64_t size;
};

/* False if there is none of that name. */
bool btf_percpu(const struct btf *btf, const char *name, struct btf_var *var);

#endif
