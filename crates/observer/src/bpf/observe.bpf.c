// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Counts preemptions of each vCPU by class, the off-CPU time after them, and the siblings that
 * waited meanwhile. Works under every scheduler, because it observes the context switch itself.
 *
 * Hooks write the counters of a vCPU on the CPU that it runs on or leaves, one hook at a time. The
 * clock may interrupt the other hooks, and has counters of its own.
 */
#include <holdfast/types.bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include <holdfast/policy.h>
#include <holdfast/kvm.bpf.h>
#include <holdfast/vcpu.bpf.h>
#include "observe.h"

/* include/linux/sched.h */
#define PF_KTHREAD 0x00200000

char _license[] SEC("license") = "GPL";

/* Longer absences than this are counted separately: grace does not avoid shorter ones. */
const volatile u64 long_absence_ns = 1000000;

/* Whether every absence and sample is reported, for a recording. */
const volatile bool takes_notes = false;

/* By thread. User space removes entries of threads that have ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HF_MAX_VCPUS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u32);
	__type(value, struct hf_vcpu_stats);
} stats SEC(".maps");

/* A vCPU's counters at their beginning: too large for the stack. Never written. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct hf_vcpu_stats);
} no_stats SEC(".maps");

/* By struct kvm. User space removes entries of VMs that have ended, here and in `siblings`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HF_MAX_VMS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, struct hf_vm_state);
} vm_states SEC(".maps");

/* Where each vCPU's words are, for its siblings. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HF_MAX_VCPUS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct hf_vcpu_key);
	__type(value, struct hf_vcpu);
} siblings SEC(".maps");

/* User space removes entries of VMs and processes that have ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, HF_MAX_TAKERS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct hf_taker_key);
	__type(value, struct hf_taken);
} takers SEC(".maps");

/* Sized by user space: one page if no notes are taken. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} notes SEC(".maps");

/*
 * Switches that were not counted, and VMs, siblings and takers that were not noted, for want of
 * memory or of room in a map; and notes for which the ring had no room.
 */
u64 nr_lost;
u64 nr_lost_notes;

/* Never used: the skeleton has the types of globals and map values alone. */
struct hf_note note_type;

static struct hf_vcpu_stats *stats_of(u32 tid)
{
	return bpf_map_lookup_elem(&stats, &tid);
}

/* Counters of a vCPU; creates them if there are none yet. */
static struct hf_vcpu_stats *begin_stats(struct task_struct *p, const struct hf_vcpu *v)
{
	u32 tid = p->pid, zero = 0;
	struct hf_vcpu_stats *c = stats_of(tid), *none;

	/* The counters may belong to an ended thread of the same number. */
	if (!c || c->started != p->start_time) {
		none = bpf_map_lookup_elem(&no_stats, &zero);
		if (!none)
			return NULL;
		bpf_map_update_elem(&stats, &tid, none, BPF_ANY);
		c = stats_of(tid);
		if (!c) {
			__sync_fetch_and_add(&nr_lost, 1);
			return NULL;
		}
		c->tid = tid;
		c->started = p->start_time;
	}
	/*
	 * The counters of a thread go on if it changes to a vCPU of another VM of the same process.
	 * Before v6.11 KVM loads a vCPU that has no index yet.
	 */
	if (c->kvm != v->kvm || c->vcpu_idx != v->vcpu_idx) {
		c->kvm = v->kvm;
		c->vcpu_idx = v->vcpu_idx;
		c->epoch = 0;
	}
	return c;
}

static struct hf_vm_state *begin_vm_state(u64 kvm)
{
	struct hf_vm_state *s = bpf_map_lookup_elem(&vm_states, &kvm), none = {};

	if (s)
		return s;
	bpf_map_update_elem(&vm_states, &kvm, &none, BPF_NOEXIST);
	s = bpf_map_lookup_elem(&vm_states, &kvm);
	if (!s)
		__sync_fetch_and_add(&nr_lost, 1);
	return s;
}

static struct hf_note *begin_note(const struct hf_vcpu_stats *c, u32 kind, u64 now)
{
	struct hf_note *n;

	if (!takes_notes)
		return NULL;
	n = bpf_ringbuf_reserve(&notes, sizeof(*n), 0);
	if (!n) {
		__sync_fetch_and_add(&nr_lost_notes, 1);
		return NULL;
	}
	__builtin_memset(n, 0, sizeof(*n));
	n->t_ns = now;
	n->kvm = c->kvm;
	n->tid = c->tid;
	n->vcpu_idx = c->vcpu_idx;
	n->kind = kind;
	n->cpu = bpf_get_smp_processor_id();
	return n;
}

/* floor(log2(ns)), up to the last slot. */
static u32 slot_of(u64 ns)
{
	u32 slot = 0, shift;

	for (shift = 32; shift; shift >>= 1) {
		if (ns >> shift) {
			ns >>= shift;
			slot += shift;
		}
	}
	return slot < HF_NR_SLOTS ? slot : HF_NR_SLOTS - 1;
}

static u32 taker_of(const struct task_struct *next)
{
	if (!next->pid)
		return HF_TAKER_NONE;
	return next->flags & PF_KTHREAD ? HF_TAKER_KERNEL : next->tgid;
}

/* A preemption of the vCPU of @c, by its taker, has ended. */
static void count_taken(const struct hf_vcpu_stats *c, enum hf_class class, u64 away_ns)
{
	struct hf_taker_key key = { .kvm = c->kvm, .tgid = c->taker };
	struct hf_taken *taken = bpf_map_lookup_elem(&takers, &key), none = {};

	if (!taken) {
		bpf_map_update_elem(&takers, &key, &none, BPF_NOEXIST);
		taken = bpf_map_lookup_elem(&takers, &key);
	}
	if (!taken) {
		__sync_fetch_and_add(&nr_lost, 1);
		return;
	}
	/* Other vCPUs of the VM return at the same time. */
	__sync_fetch_and_add(&taken->nr, 1);
	__sync_fetch_and_add(&taken->away_ns, away_ns);
	if (hf_is_protected(class))
		__sync_fetch_and_add(&taken->protected_ns, away_ns);
}

static void switched_out(struct task_struct *p, const struct hf_vcpu *v, bool preempt,
			 const struct task_struct *next, u64 now)
{
	/*
	 * Is the task still runnable? Then its state is TASK_RUNNING (0), or the scheduler ignored
	 * it because of the preemption. The state is read here because the tracepoint has it as an
	 * argument since v5.18 only (fa2c3254d7cf), and at another position since v5.19
	 * (9c2136be0878). A wakeup meanwhile keeps the state other than 0 until the task has left
	 * this CPU.
	 */
	bool runnable = preempt || !p->__state;
	enum hf_class class = hf_read_class(v);
	struct hf_vcpu_stats *c;
	struct hf_vm_state *s;

	if (class >= HF_NR_CLASSES)
		return;
	c = begin_stats(p, v);
	if (!c)
		return;
	c->out_class = class;
	c->out_at = now;
	if (runnable && !preempt && c->yielding) {
		c->absence = HF_YIELDED;
	} else if (runnable) {
		c->absence = HF_PREEMPTED;
		c->taker = taker_of(next);
		c->nr[class]++;
		c->is_noted = hf_is_protected(class) && (s = begin_vm_state(v->kvm));
		if (c->is_noted)
			__sync_fetch_and_add(&s->nr_off[class], 1);
	} else if (hf_in_lock_queue(class)) {
		c->absence = HF_LOCK_HALT;
		c->nr_lock_halts++;
	} else {
		c->absence = takes_notes ? HF_SLEEPS : HF_RUNS;
	}
}

static void switched_in(struct task_struct *p, u64 now)
{
	struct hf_vcpu_stats *c = stats_of(p->pid);
	u32 class, absence, slot;
	struct hf_vm_state *s;
	struct hf_note *n;
	u64 away_ns;

	if (!c || c->absence == HF_RUNS)
		return;
	away_ns = now - c->out_at;
	absence = c->absence;
	c->absence = HF_RUNS;
	class = c->out_class;
	if (class >= HF_NR_CLASSES)
		return;

	if (absence == HF_LOCK_HALT) {
		c->lock_halt_ns += away_ns;
	} else if (absence == HF_YIELDED) {
		c->yield_ns += away_ns;
	} else if (absence == HF_PREEMPTED) {
		c->away_ns[class] += away_ns;
		if (away_ns > long_absence_ns)
			c->nr_long[class]++;
		slot = slot_of(away_ns);
		if (slot < HF_NR_SLOTS)
			c->away_hist[class][slot]++;
		c->resumed = hf_is_protected(class);
		count_taken(c, class, away_ns);
		if (c->is_noted && (s = bpf_map_lookup_elem(&vm_states, &c->kvm)))
			__sync_fetch_and_add(&s->nr_off[class], -1ULL);
	}

	n = begin_note(c, HF_NOTE_ABSENCE, now);
	if (n) {
		n->begin_ns = c->out_at;
		n->what = absence;
		n->class = class;
		bpf_ringbuf_submit(n, 0);
	}
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct hf_vcpu *v = bpf_task_storage_get(&vcpus, prev, NULL, 0);

	if (v)
		switched_out(prev, v, preempt, next, bpf_ktime_get_ns());
	if (bpf_task_storage_get(&vcpus, next, NULL, 0))
		switched_in(next, bpf_ktime_get_ns());
	return 0;
}

/*
 * A global function is verified once, and not for each caller: loading takes a tenth of the time.
 */
__noinline int sibling_class(const struct hf_vcpu *v)
{
	return v ? hf_read_class(v) : HF_UNKNOWN;
}

struct sibling_walk {
	u64 kvm;
	u64 waiting;
	u32 self;
	u64 nr;
};

static long look_at_sibling(u32 idx, struct sibling_walk *w)
{
	struct hf_vcpu_key key = { .kvm = w->kvm, .vcpu_idx = idx };
	struct hf_vcpu *v;
	int class;

	if (idx == w->self)
		return 0;
	v = bpf_map_lookup_elem(&siblings, &key);
	if (!v)
		return 0;
	class = sibling_class(v);
	if (hf_in_lock_queue(class)) {
		w->waiting |= 1ULL << (idx & 63);
		w->nr++;
	}
	return 0;
}

static void look_at_siblings(struct sibling_walk *w, u32 nr)
{
	u32 idx;

	if (bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_loop)) {
		bpf_loop(nr < HF_MAX_SIBLINGS ? nr : HF_MAX_SIBLINGS, look_at_sibling, w, 0);
		return;
	}
	/*
	 * For kernels before v5.17 only, because the verifier walks the loop once for each sibling.
	 */
	for (idx = 0; idx < HF_MAX_SIBLINGS && idx < nr; idx++)
		look_at_sibling(idx, w);
}

/*
 * The first moment of a vCPU after an absence at which its VM's memory, with its siblings' words,
 * can be read.
 */
SEC("fentry/kvm_arch_vcpu_load")
int BPF_PROG(loaded)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct hf_vcpu_stats *c = stats_of(p->pid);
	struct hf_vcpu_key key = {};
	struct hf_vm_state *s;
	struct hf_vcpu *v;
	struct hf_note *n;

	if (!c)
		return 0;
	v = bpf_task_storage_get(&vcpus, p, NULL, 0);
	if (!v || !v->epoch)
		return 0;
	if (c->epoch != v->epoch) {
		key.kvm = v->kvm;
		key.vcpu_idx = v->vcpu_idx;
		if (!bpf_map_update_elem(&siblings, &key, v, BPF_ANY))
			c->epoch = v->epoch;
		else /* The next load tries again; until then its siblings do not find it. */
			__sync_fetch_and_add(&nr_lost, 1);
		s = begin_vm_state(v->kvm);
		/*
		 * A race of two vCPUs may leave the lower number, until the other vCPU is loaded
		 * again.
		 */
		if (s && s->nr_vcpus <= v->vcpu_idx)
			s->nr_vcpus = v->vcpu_idx + 1;
	}
	if (!c->resumed)
		return 0;
	c->resumed = 0;
	s = bpf_map_lookup_elem(&vm_states, &c->kvm);
	if (!s)
		return 0;

	struct sibling_walk w = { .kvm = v->kvm, .self = v->vcpu_idx };

	look_at_siblings(&w, s->nr_vcpus);
	c->nr_resumed++;
	c->nr_siblings_waiting += w.nr;
	if (w.nr) {
		n = begin_note(c, HF_NOTE_WAITING, bpf_ktime_get_ns());
		if (n) {
			n->begin_ns = c->out_at;
			n->class = c->out_class;
			n->siblings = w.waiting;
			bpf_ringbuf_submit(n, 0);
		}
	}
	return 0;
}

/* A clock on every CPU: samples the class of the vCPU that runs here. */
SEC("perf_event")
int clock(void *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct hf_vcpu *v = bpf_task_storage_get(&vcpus, p, NULL, 0);
	struct hf_vcpu_stats *c;
	struct hf_vm_state *s;
	enum hf_class class;
	struct hf_note *n;
	u32 off = 0;

	if (!v)
		return 0;
	c = stats_of(p->pid);
	if (!c)
		return 0;
	class = hf_read_class(v);
	if (class >= HF_NR_CLASSES)
		return 0;
	c->samples[class]++;

	s = bpf_map_lookup_elem(&vm_states, &c->kvm);
	if (s && hf_in_lock_queue(class)) {
		off = (s->nr_off[HF_HOLDER] || s->nr_off[HF_IRQ]) | !!s->nr_off[HF_HEAD] << 1;
		if (off & 1)
			c->samples_holder_off++;
		else if (off)
			c->samples_head_off++;
	}

	n = begin_note(c, HF_NOTE_SAMPLE, bpf_ktime_get_ns());
	if (n) {
		n->what = off;
		n->class = class;
		bpf_ringbuf_submit(n, 0);
	}
	return 0;
}

/* Pause-loop exits; if KVM intercepts every PAUSE, all of these. */
SEC("fentry/kvm_vcpu_on_spin")
int BPF_PROG(on_spin)
{
	struct hf_vcpu_stats *c = stats_of((u32)bpf_get_current_pid_tgid());

	if (c)
		c->nr_pause_exits++;
	return 0;
}

SEC("tp_btf/kvm_hypercall")
int BPF_PROG(hypercall, unsigned long nr)
{
	struct hf_vcpu_stats *c;

	if (nr != KVM_HC_KICK_CPU && nr != KVM_HC_SCHED_YIELD)
		return 0;
	c = stats_of((u32)bpf_get_current_pid_tgid());
	if (c && nr == KVM_HC_KICK_CPU)
		c->nr_kicks++;
	else if (c)
		c->nr_yield_hypercalls++;
	return 0;
}

/*
 * Only KVM calls this function; kvm_vcpu_yield_to() itself may be inlined into its callers. If the
 * scheduler grants the yield, the vCPU calls schedule() in here while it is runnable, which looks
 * like a preemption. The program is always attached, because otherwise directed yields would count
 * as preemptions.
 */
SEC("fentry/yield_to")
int BPF_PROG(yields)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct hf_vcpu *v = bpf_task_storage_get(&vcpus, p, NULL, 0);
	struct hf_vcpu_stats *c = v ? begin_stats(p, v) : NULL;

	if (c)
		c->yielding = 1;
	return 0;
}

SEC("fexit/yield_to")
int BPF_PROG(yielded, struct task_struct *to, bool preempt, int done)
{
	struct hf_vcpu_stats *c = stats_of((u32)bpf_get_current_pid_tgid());

	if (c) {
		c->yielding = 0;
		c->nr_yields_tried++;
		if (done > 0)
			c->nr_yields_done++;
	}
	return 0;
}
