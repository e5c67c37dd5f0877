// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * hostile: a virtual machine that always claims to hold a lock. Runs on the host.
 *
 * A VMM of its own: it makes a VM through /dev/kvm whose --threads vCPUs never leave
 * an endless loop. To a reader on the host the VM's memory looks like a Linux kernel:
 * it has the BTF of the host's own kernel, and for each vCPU a per-CPU area with the
 * words that describe a CPU's state. The steal-time record of each vCPU is registered
 * with KVM as Linux does it, in that area. The words are lies.
 *
 * Faithful to: a tenant that knows how a scheduler finds lock holders to protect, and
 * wants more than its share. The claims:
 *
 *   holder    preemption is off, always: a spinlock that is never released
 *   irq       an interrupt is served, always
 *   head      first in a lock's queue, always
 *   waiter    in a lock's queue, always, behind a vCPU that does not exist
 *   called    no lock, but a function call pending, always, which its IPI sender spins on
 *   flipping  a holder nearly all the time, and preemptible for a moment every --hold
 *             rounds: no claim lasts long enough to be distrusted
 *
 * Not faithful to: a kernel that does anything else, and to attacks on the reader itself
 * (crates/guest/tests/hostile.rs) other than --stall: the last page of its BTF comes and
 * goes, and stays away once a reader waits for it.
 *
 * An operation is --rounds rounds of the loop, so that it counts the VM's CPU time. With
 * --rest each vCPU sleeps after an operation: a VM of many vCPUs is then nearly idle.
 * With --replace the thread ends its VM after this many operations and makes another one.
 * With --leave 1 SIGUSR1 ends the VM, and its thread goes on without one.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "btf.h"
#include "common.h"

#define MSR_KVM_STEAL_TIME 0x4b564d03 /* arch/x86/include/uapi/asm/kvm_para.h */
#define KVM_MSR_ENABLED	   1

#define PAGE		   4096ull
#define MAX_ROUNDS	   (1u << 20)
#define CODE_GPA	   0x1000ull
#define BTF_GPA		   0x100000ull
#define DIRECT_MAP	   0xffff888000000000ull /* where Linux has it without KASLR */

static const char *claim = "holder";
static const char *rounds = "1048576";
static unsigned int nr_rounds;
static const char *hold = "65536";
static unsigned int hold_rounds;
static const char *rest = "0";
static unsigned int rest_ms;
static const char *replace = "0";
static unsigned int replace_after;
static const char *leave = "0";
static volatile sig_atomic_t is_to_leave;
static const char *stall = "0";
static const char *blob_path = "/sys/kernel/btf/vmlinux";

/* Words of a per-CPU area, as offsets in it; crates/guest/src/layout.rs reads the same. */
static struct {
	uint64_t len;
	uint64_t steal_time;
	uint64_t preempt_count;
	bool wide_count; /* it has 64 bits, since Linux 7.3 */
	uint64_t cpu_number;
	uint64_t current_task;
	uint64_t this_cpu_off;
	uint64_t qnodes;
	uint64_t call_single_queue;
} area;

static char *memory;
static uint64_t memory_len;
static uint64_t areas_gpa;
static int kvm, vm;

struct vcpu {
	int fd;
	struct kvm_run *run;
	size_t run_len;
};
static struct vcpu vcpus[COUNTERS_MAX_SLOTS];

/*
 * The code of a vCPU. ebp: claimed preempt_count, at ebx; esi: rounds with the claim,
 * edi: rounds without it, 0 for never; eax: repetitions of both for one operation.
 */
extern const char guest_code[], guest_code_end[];
__asm__(".pushsection .rodata\n"
	".code32\n"
	"guest_code:\n"
	"	mov %eax, %edx\n"
	"1:	mov %ebp, (%ebx)\n"
	"	mov %esi, %ecx\n"
	"2:	dec %ecx\n"
	"	jnz 2b\n"
	"	test %edi, %edi\n"
	"	jz 4f\n"
	"	movl $0, (%ebx)\n"
	"	mov %edi, %ecx\n"
	"3:	dec %ecx\n"
	"	jnz 3b\n"
	"4:	dec %edx\n"
	"	jnz 1b\n"
	"	out %al, $0x80\n"
	"	jmp guest_code\n"
	"guest_code_end:\n"
	".code64\n"
	".popsection\n");

static int must(int result, const char *what)
{
	if (result < 0)
		die(errno, "%s failed", what);
	return result;
}

static char *read_blob(size_t *len)
{
	int fd = open(blob_path, O_RDONLY | O_CLOEXEC);
	size_t room = 1 << 20;
	char *blob = NULL;
	ssize_t n;

	if (fd < 0)
		die(errno,
		    "cannot open %s; the kernel needs DEBUG_INFO_BTF, or name a file with --btf",
		    blob_path);
	for (*len = 0;; *len += (size_t)n) {
		if (!blob || *len == room) {
			room *= 2;
			blob = realloc(blob, room);
			if (!blob)
				die(errno, "no memory");
		}
		n = read(fd, blob + *len, room - *len);
		if (n < 0)
			die(errno, "cannot read %s", blob_path);
		if (!n)
			break;
	}
	close(fd);
	return blob;
}

static struct btf_var required(const struct btf *btf, const char *name)
{
	struct btf_var var;

	if (!btf_percpu(btf, name, &var))
		die(0, "%s has no per-CPU variable %s", blob_path, name);
	return var;
}

static void lay_out(const struct btf *btf)
{
	struct btf_var hot, count;

	area.len = (btf->percpu_len + PAGE - 1) / PAGE * PAGE;
	area.steal_time = required(btf, "steal_time").offset;
	area.this_cpu_off = required(btf, "this_cpu_off").offset;
	area.qnodes = required(btf, "qnodes").offset;
	area.call_single_queue = required(btf, "call_single_queue").offset;
	if (btf_percpu(btf, "pcpu_hot", &hot)) {
		/* Linux 6.2 to 6.14: struct pcpu_hot begins with these three. */
		area.current_task = hot.offset;
		area.preempt_count = hot.offset + 8;
		area.cpu_number = hot.offset + 12;
	} else {
		area.current_task = required(btf, "current_task").offset;
		count = required(btf, "__preempt_count");
		area.preempt_count = count.offset;
		area.wide_count = count.size == 8;
		area.cpu_number = required(btf, "cpu_number").offset;
	}
}

static void put(uint64_t gpa, uint64_t value, size_t len)
{
	memcpy(memory + gpa, &value, len);
}

static bool claims(const char *what)
{
	return !strcmp(claim, what);
}

static uint32_t claimed(void)
{
	/* HARDIRQ_OFFSET */
	if (claims("irq"))
		return 1u << (area.wide_count ? 24 : 16);
	return claims("called") ? 0 : 1;
}

static void fill_area(unsigned int cpu)
{
	uint64_t gpa = areas_gpa + cpu * area.len;

	put(gpa + area.cpu_number, cpu, 4);
	put(gpa + area.preempt_count, claimed(), 4);
	put(gpa + area.current_task, DIRECT_MAP + PAGE * (cpu + 1), 8);
	put(gpa + area.this_cpu_off, DIRECT_MAP + gpa, 8);
	/* struct mcs_spinlock: next, locked, count */
	if (claims("head"))
		put(gpa + area.qnodes + 8, 1, 4);
	if (claims("head") || claims("waiter"))
		put(gpa + area.qnodes + 12, 1, 4);
	/* An entry a terabyte outside of the direct map, as on the stack of a waiting IPI sender. */
	if (claims("called"))
		put(gpa + area.call_single_queue, DIRECT_MAP + (1ULL << 40), 8);
}

static void start_vcpu(unsigned int cpu)
{
	const struct kvm_segment code = {
		.limit = ~0u, .selector = 8, .type = 11, .present = 1, .db = 1, .s = 1, .g = 1
	};
	struct kvm_segment data = code;
	uint64_t gpa = areas_gpa + cpu * area.len;
	struct {
		struct kvm_msrs head;
		struct kvm_msr_entry entry;
	} msrs = { .head.nmsrs = 1,
		   .entry = { .index = MSR_KVM_STEAL_TIME,
			      .data = (gpa + area.steal_time) | KVM_MSR_ENABLED } };
	struct kvm_regs regs = { .rip = CODE_GPA,
				 .rflags = 2,
				 .rbp = claimed(),
				 .rbx = gpa + area.preempt_count,
				 .rsi = hold_rounds,
				 .rdi = claims("flipping") ? 16 : 0,
				 .rax = nr_rounds / hold_rounds };
	struct vcpu *v = &vcpus[cpu];
	struct kvm_sregs sregs;

	v->fd = must(ioctl(vm, KVM_CREATE_VCPU, cpu), "KVM_CREATE_VCPU");
	v->run_len = (size_t)must(ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0), "KVM_GET_VCPU_MMAP_SIZE");
	v->run = mmap(NULL, v->run_len, PROT_READ | PROT_WRITE, MAP_SHARED, v->fd, 0);
	if (v->run == MAP_FAILED)
		die(errno, "cannot map vCPU %u", cpu);
	/* Flat 32-bit segments without paging. */
	data.selector = 16;
	data.type = 3;
	must(ioctl(v->fd, KVM_GET_SREGS, &sregs), "KVM_GET_SREGS");
	sregs.cs = code;
	sregs.ds = sregs.es = sregs.fs = sregs.gs = sregs.ss = data;
	sregs.cr0 |= 1;
	must(ioctl(v->fd, KVM_SET_SREGS, &sregs), "KVM_SET_SREGS");
	must(ioctl(v->fd, KVM_SET_REGS, &regs), "KVM_SET_REGS");
	if (ioctl(v->fd, KVM_SET_MSRS, &msrs) != 1)
		die(errno, "KVM does not take a steal-time record");
}

static void make_vm(void)
{
	const struct kvm_userspace_memory_region region = { .memory_size = memory_len,
							    .userspace_addr = (uintptr_t)memory };
	unsigned int cpu;

	vm = must(ioctl(kvm, KVM_CREATE_VM, 0), "KVM_CREATE_VM");
	must(ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "KVM_SET_USER_MEMORY_REGION");
	for (cpu = 0; cpu < workload_args.threads; cpu++) {
		fill_area(cpu);
		start_vcpu(cpu);
	}
}

/* A VM ends when no descriptor of it or of its vCPUs is open. */
static void end_vm(void)
{
	munmap(vcpus[0].run, vcpus[0].run_len);
	close(vcpus[0].fd);
	close(vm);
}

static void *come_and_go(void *arg)
{
	struct pollfd fault = { .fd = *(int *)arg, .events = POLLIN };
	static char copy[PAGE];
	char *page = memory + (areas_gpa - PAGE);
	struct uffdio_copy back = { .dst = (uintptr_t)page, .src = (uintptr_t)copy, .len = PAGE };

	memcpy(copy, page, PAGE);
	for (;;) {
		must(madvise(page, PAGE, MADV_DONTNEED), "MADV_DONTNEED");
		if (poll(&fault, 1, 20) > 0)
			for (;;)
				pause();
		back.copy = 0;
		must(ioctl(fault.fd, UFFDIO_COPY, &back), "UFFDIO_COPY");
		usleep(5000);
	}
	return NULL;
}

/* A reader of the BTF's last page waits for ever if it comes at the wrong moment. */
static void start_stalling(void)
{
	static int fd;
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register last = { .range = { .start = (uintptr_t)memory + areas_gpa - PAGE,
						   .len = PAGE },
					.mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t thread;
	int error;

	fd = must((int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), "userfaultfd");
	must(ioctl(fd, UFFDIO_API, &api), "UFFDIO_API");
	must(ioctl(fd, UFFDIO_REGISTER, &last), "UFFDIO_REGISTER");
	error = pthread_create(&thread, NULL, come_and_go, &fd);
	if (error)
		die(error, "cannot start a thread");
}

static void leave_soon(int signal)
{
	(void)signal;
	is_to_leave = 1;
}

static void prepare(void)
{
	bool leaves, stalls;
	struct btf btf;
	size_t len;
	char *blob;

	if (!claims("holder") && !claims("irq") && !claims("head") && !claims("waiter") &&
	    !claims("called") && !claims("flipping"))
		usage_error("--claim is holder, irq, head, waiter, called or flipping, not '%s'",
			    claim);
	nr_rounds = number("rounds", rounds, 16, MAX_ROUNDS);
	hold_rounds = claims("flipping") ? number("hold", hold, 16, nr_rounds) : nr_rounds;
	rest_ms = number("rest", rest, 0, 60000);
	replace_after = number("replace", replace, 0, 1u << 30);
	leaves = number("leave", leave, 0, 1);
	stalls = number("stall", stall, 0, 1);
	if ((replace_after || leaves) && workload_args.threads != 1)
		usage_error("--replace and --leave are for one thread");
	if (leaves)
		signal(SIGUSR1, leave_soon);
	blob = read_blob(&len);
	if (!btf_open(&btf, blob, len))
		die(0, "%s is not the BTF of a kernel with per-CPU variables", blob_path);
	lay_out(&btf);

	areas_gpa = (BTF_GPA + len + PAGE - 1) / PAGE * PAGE;
	memory_len = areas_gpa + workload_args.threads * area.len;
	/* Populated: a reader looks at resident pages only. */
	memory = mmap(NULL, memory_len, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (memory == MAP_FAILED)
		die(errno, "no memory");
	memcpy(memory + CODE_GPA, guest_code, (size_t)(guest_code_end - guest_code));
	memcpy(memory + BTF_GPA, blob, len);
	free(blob);

	kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
	if (kvm < 0)
		die(errno, "cannot open /dev/kvm");
	make_vm();
	if (stalls)
		start_stalling();
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	struct vcpu *v = &vcpus[worker];
	uint64_t start_ns, end_ns;
	unsigned int nr_ops = 0;

	for (start_ns = now_ns();; start_ns = end_ns) {
		while (ioctl(v->fd, KVM_RUN, 0) < 0)
			if (errno != EINTR && errno != EAGAIN)
				die(errno, "KVM_RUN of vCPU %u failed", worker);
		if (v->run->exit_reason != KVM_EXIT_IO)
			die(0, "vCPU %u left its loop: KVM exit reason %u", worker,
			    v->run->exit_reason);
		end_ns = now_ns();
		counters_op(slot, end_ns - start_ns);
		if (rest_ms) {
			usleep(rest_ms * 1000);
			end_ns = now_ns();
		}
		if (++nr_ops == replace_after) {
			end_vm();
			make_vm();
			nr_ops = 0;
			end_ns = now_ns();
		}
		if (is_to_leave) {
			end_vm();
			for (;;)
				counters_op(slot, 0);
		}
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "claim", "WHAT", "holder, irq, head, waiter, called or flipping", &claim },
		{ "rounds", "N", "of the loop in one operation", &rounds },
		{ "hold", "ROUNDS", "of the loop between two moments without a claim", &hold },
		{ "rest", "MS", "that a vCPU sleeps after each operation", &rest },
		{ "replace", "OPS", "after which the VM is replaced by another one", &replace },
		{ "leave", "0|1", "whether SIGUSR1 ends its VM, and its thread loops", &leave },
		{ "stall", "0|1", "whether a reader waits for ever for the end of its BTF",
		  &stall },
		{ "btf", "FILE", "BTF of the kernel it poses as", &blob_path },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "A VM (on the host) whose --threads vCPUs always claim to hold a lock.",
		.op = "--rounds rounds of the vCPU's loop",
		.options = options,
		.threads = 1,
		.prepare = prepare,
		.work = work,
	};

	return workload_main(&workload, argc, argv);
}
