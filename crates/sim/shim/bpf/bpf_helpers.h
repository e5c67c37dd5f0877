/* SPDX-License-Identifier: GPL-2.0-or-later */
/* First in the include path: libbpf's own header, whose helpers then become calls of the model. */
#pragma once
#include_next <bpf/bpf_helpers.h>
#include "../model.h"
