/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * BPF's side of the scheduler, natively. A helper becomes a call of the model (hf_*, src/bpf.rs); a
 * kfunc keeps its name (src/kfuncs.rs). Only the compiler knows what a map holds, as its type is
 * its description: each call passes that on.
 */
#ifndef HF_MODEL_H
#define HF_MODEL_H

/* clang-format off */
struct hf_map_desc {
	unsigned int type, key_size, value_size, max_entries;
};

void *hf_map_lookup(void *map, const struct hf_map_desc *d, const void *key);
long hf_map_update(void *map, const struct hf_map_desc *d, const void *key, const void *value,
		   unsigned long flags);
long hf_map_delete(void *map, const struct hf_map_desc *d, const void *key);
void *hf_task_storage(void *map, unsigned int value_size, struct task_struct *p,
		      unsigned long flags);
long hf_timer_init(void *timer, void *map, const struct hf_map_desc *d);
long hf_timer_set_callback(void *timer, int (*fn)(void *, void *, void *));
long hf_timer_start(void *timer, unsigned long ns, unsigned long flags);
void hf_spin_lock(void *lock);
void hf_spin_unlock(void *lock);
long hf_read_user(void *dst, unsigned int size, const void *src);
long hf_read_kernel(void *dst, unsigned int size, const void *src);
unsigned int hf_this_cpu(void);
unsigned int hf_random(void);
struct task_struct *hf_current(void);
unsigned long hf_ktime(void);
_Bool hf_in_task(void);
/* Has this kernel that kfunc, type or enumerator? */
_Bool hf_has(const char *name);
/* clang-format on */

/* Turns of bpf_for() loops, which the model counts as cost. */
extern unsigned long hf_loops;

/* Asked once: a kernel does not change while it runs. */
#define hf_exists(name)                                                                            \
	({                                                                                         \
		static signed char __known;                                                        \
		if (!__known)                                                                      \
			__known = hf_has(name) ? 1 : -1;                                           \
		__known > 0;                                                                       \
	})
#undef bpf_ksym_exists
#define bpf_ksym_exists(sym) hf_exists(#sym)

#define __hf_n(member)	     ((unsigned int)(sizeof(*(member)) / sizeof(int)))
#define __hf_desc(map)                                                                             \
	(&(const struct hf_map_desc){ __hf_n((map)->type), sizeof(*(map)->key),                    \
				      sizeof(*(map)->value), __hf_n((map)->max_entries) })

#define bpf_map_lookup_elem(map, k)                                                                \
	((typeof((map)->value))hf_map_lookup((map), __hf_desc(map), (k)))
#define bpf_map_update_elem(map, k, v, flags)                                                      \
	hf_map_update((map), __hf_desc(map), (k), (v), (flags))
#define bpf_map_delete_elem(map, k) hf_map_delete((map), __hf_desc(map), (k))
#define bpf_task_storage_get(map, p, init, flags)                                                  \
	((typeof((map)->value))hf_task_storage((map), sizeof(*(map)->value), (p), (flags)))

#define bpf_timer_init(t, map, clock) hf_timer_init((t), (map), __hf_desc(map))
#define bpf_timer_set_callback(t, fn)                                                              \
	hf_timer_set_callback((t), (int (*)(void *, void *, void *))(fn))
#define bpf_timer_start(t, ns, flags)		  hf_timer_start((t), (ns), (flags))
#define bpf_spin_lock(lock)			  hf_spin_lock(lock)
#define bpf_spin_unlock(lock)			  hf_spin_unlock(lock)
#define bpf_probe_read_user(dst, size, src)	  hf_read_user((dst), (size), (src))
#define bpf_probe_read_kernel(dst, size, src)	  hf_read_kernel((dst), (size), (src))
#define bpf_probe_read_kernel_str(dst, size, src) hf_read_kernel((dst), (size), (src))
#define bpf_get_smp_processor_id()		  hf_this_cpu()
#define bpf_get_prandom_u32()			  hf_random()
#define bpf_get_current_task_btf()		  hf_current()
#define bpf_ktime_get_ns()			  hf_ktime()
#undef bpf_printk
#define bpf_printk(fmt, args...) ((void)0)

/* Open-coded iterators over numbers: bpf_for(). */
static inline int hf_iter_num_new(void *it, int start, int end)
{
	((int *)it)[0] = start - 1;
	((int *)it)[1] = end;
	return 0;
}

static inline int *hf_iter_num_next(void *it)
{
	int *at = it;

	if (at[0] + 1 >= at[1])
		return (int *)0;
	hf_loops++;
	at[0]++;
	return at;
}

static inline void hf_iter_num_destroy(void *it)
{
}

#define bpf_iter_num_new     hf_iter_num_new
#define bpf_iter_num_next    hf_iter_num_next
#define bpf_iter_num_destroy hf_iter_num_destroy

/* The scx headers write this in BPF assembly. A member out of bounds is NULL, as there. */
#define MEMBER_VPTR(base, member)                                                                  \
	((typeof((base)member) *)({                                                                \
		unsigned long __base = (unsigned long)&(base);                                     \
		unsigned long __at = (unsigned long)&((base)member) - __base;                      \
		__at <= sizeof(base) - sizeof((base)member) ? __base + __at : 0UL;                 \
	}))

#endif /* HF_MODEL_H */
