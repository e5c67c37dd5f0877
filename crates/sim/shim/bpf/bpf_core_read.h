/* SPDX-License-Identifier: GPL-2.0-or-later */
/* CO-RE natively: a struct of the kernel is that struct. Which of them exist, the model says. */
#pragma once
#include "../model.h"

#define bpf_core_type_exists(type)		     hf_exists(#type)
#define bpf_core_enum_value_exists(enum_type, value) hf_exists(#value)
#define bpf_core_field_exists(field...)		     1
#define bpf_core_enum_value(enum_type, value)	     (value)
#define bpf_core_field_offset(type, field)	     __builtin_offsetof(type, field)
#define bpf_core_type_id_local(type)		     0

#define __hf_arrow1(a)				     a
#define __hf_arrow2(a, b)			     (a)->b
#define __hf_arrow3(a, b, c)			     (a)->b->c
#define __hf_arrow4(a, b, c, d)			     (a)->b->c->d
#define __hf_arrow_nth(_1, _2, _3, _4, N, ...)	     N
#define BPF_CORE_READ(args...)                                                                     \
	(__hf_arrow_nth(args, __hf_arrow4, __hf_arrow3, __hf_arrow2, __hf_arrow1)(args))
