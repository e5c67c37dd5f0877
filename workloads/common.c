// SPDX-License-Identifier: GPL-2.0-or-later
/* The life of a workload: its workers, their end, and the clean-up. See common.h. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static const struct workload *self;
static struct counters_header *counters;
static unsigned int nr_workers;
static pid_t parent;
static pid_t pids[COUNTERS_MAX_SLOTS];

/* Worker i goes to the i-th CPU of those allowed, and round again. */
static void pin_to_cpu(unsigned int worker)
{
	cpu_set_t allowed, one;
	int skip, cpu;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		die(errno, "cannot read the CPUs allowed");
	skip = worker % CPU_COUNT(&allowed);
	for (cpu = 0; !CPU_ISSET(cpu, &allowed) || skip--; cpu++)
		;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (sched_setaffinity(0, sizeof(one), &one))
		die(errno, "cannot pin worker %u to CPU %d", worker, cpu);
}

static _Noreturn void *run_worker(void *arg)
{
	unsigned int worker = (uintptr_t)arg;

	if (workload_args.pin)
		pin_to_cpu(worker);
	self->work(worker, counters_slot(counters, worker));
	die(0, "worker %u returned", worker);
}

static void start_thread(unsigned int worker)
{
	pthread_t thread;
	int err;

	err = pthread_create(&thread, NULL, run_worker, (void *)(uintptr_t)worker);
	if (err)
		die(err, "cannot start thread %u", worker);
}

static void start_process(unsigned int worker)
{
	sigset_t none;
	pid_t pid = fork();

	if (pid < 0)
		die(errno, "cannot start process %u", worker);
	if (!pid) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		run_worker((void *)(uintptr_t)worker);
	}
	/* In parent and child: the group exists before either needs it. */
	setpgid(pid, pid);
	pids[worker] = pid;
}

static bool a_worker_died(void)
{
	unsigned int i;
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
		for (i = 0; i < nr_workers; i++)
			if (pids[i] == pid)
				return true;
	return false;
}

/* Waits for SIGTERM (or SIGINT) or the time to be up; false if a worker ended on its own. */
static bool wait_for_end(const sigset_t *signals, uint64_t end_ns)
{
	struct timespec left = { .tv_sec = 3600 };
	uint64_t now;
	int sig;

	for (;;) {
		if (end_ns) {
			now = now_ns();
			if (now >= end_ns)
				return true;
			left.tv_sec = (end_ns - now) / 1000000000u;
			left.tv_nsec = (end_ns - now) % 1000000000u;
		}
		sig = sigtimedwait(signals, NULL, &left);
		if (sig == SIGTERM || sig == SIGINT)
			return true;
		if (sig == SIGCHLD && self->processes && a_worker_died())
			return false;
	}
}

/*
 * A worker and its descendants share a group. A process that outlives its parent
 * becomes our child (PR_SET_CHILD_SUBREAPER), so wait() fails once all have ended.
 */
static void kill_processes(void)
{
	unsigned int i;

	for (i = 0; i < nr_workers; i++)
		kill(-pids[i], SIGKILL);
	while (wait(NULL) > 0 || errno == EINTR)
		;
}

int workload_main(const struct workload *w, int argc, char **argv)
{
	uint64_t start_ns, elapsed_ns;
	sigset_t signals;
	unsigned int i;
	bool ok;

	self = w;
	parse_args(w, argc, argv);
	nr_workers = w->workers ? w->workers : workload_args.threads;
	counters = counters_map(&workload_args.counters, workload_args.threads);
	parent = getpid();
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	if (w->prepare)
		w->prepare();

	start_ns = now_ns();
	for (i = 0; i < nr_workers; i++)
		w->processes ? start_process(i) : start_thread(i);
	ok = wait_for_end(&signals, workload_args.seconds
					    ? start_ns + workload_args.seconds * 1000000000ull
					    : 0);
	elapsed_ns = now_ns() - start_ns;
	if (w->processes)
		kill_processes();
	if (w->cleanup)
		w->cleanup();
	if (!ok)
		die(0, "a worker ended before its time");
	if (workload_args.print)
		counters_print(counters, elapsed_ns);
	/* Ends the threads, too. */
	exit(0);
}
