// SPDX-License-Identifier: GPL-2.0-or-later
/* See btf.h. */
#include <string.h>

#include "btf.h"

#define BTF_MAGIC 0xeb9f

enum {
	KIND_INT = 1,
	KIND_ARRAY = 3,
	KIND_STRUCT = 4,
	KIND_UNION = 5,
	KIND_ENUM = 6,
	KIND_FUNC_PROTO = 13,
	KIND_VAR = 14,
	KIND_DATASEC = 15,
	KIND_DECL_TAG = 17,
	KIND_ENUM64 = 19,
};

struct type {
	uint32_t name;
	uint32_t info; /* 0-15: number of members, 24-28: kind */
	uint32_t size;
};

struct section_entry {
	uint32_t type;
	uint32_t offset;
	uint32_t size;
};

static unsigned int kind_of(const struct type *t)
{
	return t->info >> 24 & 0x1f;
}

/* Bytes that follow a type. */
static size_t extra(const struct type *t)
{
	size_t nr = t->info & 0xffff;

	switch (kind_of(t)) {
	case KIND_INT:
	case KIND_VAR:
	case KIND_DECL_TAG:
		return 4;
	case KIND_ARRAY:
		return 12;
	case KIND_STRUCT:
	case KIND_UNION:
	case KIND_DATASEC:
	case KIND_ENUM64:
		return nr * 12;
	case KIND_ENUM:
	case KIND_FUNC_PROTO:
		return nr * 8;
	}
	return 0;
}

static const char *name_of(const struct btf *btf, const struct type *t)
{
	return t->name < btf->strings_len ? btf->strings + t->name : "";
}

/* The next type at *at, which moves on; false at the end. */
static bool next_type(const struct btf *btf, size_t *at, struct type *t)
{
	if (btf->types_len - *at < sizeof(*t))
		return false;
	memcpy(t, btf->types + *at, sizeof(*t));
	*at += sizeof(*t) + extra(t);
	return *at <= btf->types_len;
}

bool btf_open(struct btf *btf, const char *blob, size_t len)
{
	struct {
		uint16_t magic;
		uint8_t version, flags;
		uint32_t header_len, types, types_len, strings, strings_len;
	} head;
	struct type t;
	size_t at = 0;

	memset(btf, 0, sizeof(*btf));
	if (len < sizeof(head))
		return false;
	memcpy(&head, blob, sizeof(head));
	if (head.magic != BTF_MAGIC ||
	    (uint64_t)head.header_len + head.types + head.types_len > len ||
	    (uint64_t)head.header_len + head.strings + head.strings_len > len)
		return false;
	btf->types = blob + head.header_len + head.types;
	btf->types_len = head.types_len;
	btf->strings = blob + head.header_len + head.strings;
	btf->strings_len = head.strings_len;
	while (next_type(btf, &at, &t)) {
		if (kind_of(&t) != KIND_DATASEC || strcmp(name_of(btf, &t), ".data..percpu"))
			continue;
		btf->percpu = btf->types + at - extra(&t);
		btf->nr_percpu = t.info & 0xffff;
		btf->percpu_len = t.size;
		return true;
	}
	return false;
}

bool btf_percpu(const struct btf *btf, const char *name, struct btf_var *var)
{
	struct section_entry entry;
	uint32_t id = 0, wanted;
	struct type t;
	size_t at = 0;
	unsigned int i;

	/* Types are numbered from 1; the section names its variables by number. */
	do {
		id++;
		if (!next_type(btf, &at, &t))
			return false;
	} while (kind_of(&t) != KIND_VAR || strcmp(name_of(btf, &t), name));
	wanted = id;
	for (i = 0; i < btf->nr_percpu; i++) {
		memcpy(&entry, btf->percpu + i * sizeof(entry), sizeof(entry));
		if (entry.type == wanted) {
			var->offset = entry.offset;
			var->size = entry.size;
			return true;
		}
	}
	return false;
}
