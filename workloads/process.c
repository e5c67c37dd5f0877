// SPDX-License-Identifier: GPL-2.0-or-later
/* Child processes and scratch directories of workloads that run other programs. See common.h. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

/* The child of vfork(): errno is its parent's, too. */
static __attribute__((noinline)) _Noreturn void exec(char *const argv[], int in, int out)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (dup2(in < 0 ? null : in, STDIN_FILENO) >= 0 &&
	    dup2(out < 0 ? null : out, STDOUT_FILENO) >= 0)
		execv(argv[0], argv);
	_exit(127);
}

pid_t spawn(char *const argv[], int in, int out)
{
	pid_t pid;

	/*
	 * As posix_spawn() and make do it: without a copy of the address space,
	 * and back here once the child has called exec or failed to.
	 */
	errno = 0;
	pid = vfork();
	if (!pid)
		exec(argv, in, out);
	if (pid < 0 || errno)
		die(errno, "cannot run %s", argv[0]);
	return pid;
}

int io_open(pid_t pid)
{
	char path[32];

	if (access("/proc/self/io", R_OK))
		die(errno, "cannot read /proc/self/io; the kernel needs TASK_IO_ACCOUNTING");
	snprintf(path, sizeof(path), "/proc/%d/io", (int)pid);
	return open(path, O_RDONLY | O_CLOEXEC);
}

uint64_t io_bytes_read(int io)
{
	char text[512];
	uint64_t bytes = 0;
	ssize_t n = pread(io, text, sizeof(text) - 1, 0);

	if (n > 0) {
		text[n] = '\0';
		sscanf(text, "rchar: %" SCNu64, &bytes);
	}
	return bytes;
}

/* How often progress is looked at: often enough for windows of seconds, and hardly any work. */
#define SAMPLE_INTERVAL_MS 20

uint64_t count_until_end(pid_t pid, struct counters_slot *slot, uint64_t (*so_far)(void *of),
			 void *of)
{
	struct pollfd end = { .fd = pidfd_open(pid, 0), .events = POLLIN };
	uint64_t counted = 0, now;
	bool ended;

	if (end.fd < 0)
		die(errno, "cannot watch process %d", (int)pid);
	do {
		/* First this: once it has ended, the last look sees all it did. */
		ended = poll(&end, 1, SAMPLE_INTERVAL_MS) == 1;
		now = so_far(of);
		counters_add(&slot->ops, now - counted);
		counted = now;
	} while (!ended);
	close(end.fd);
	return counted;
}

struct reads {
	int io;
	uint64_t unit_bytes;
};

static uint64_t units_read(void *of)
{
	struct reads *r = of;

	return io_bytes_read(r->io) / r->unit_bytes;
}

void count_reads_until_end(pid_t pid, struct counters_slot *slot, uint64_t unit_bytes)
{
	struct reads r = { .io = io_open(pid), .unit_bytes = unit_bytes };

	count_until_end(pid, slot, units_read, &r);
	close(r.io);
}

int wait_for(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			die(errno, "cannot wait for process %d", (int)pid);
	return status;
}

char *make_temp_dir(const char *parent, const char *name)
{
	char *full = realpath(parent, NULL), *path;

	if (!full)
		die(errno, "cannot use the directory %s", parent);
	if (asprintf(&path, "%s/holdfast-%s-XXXXXX", full, name) < 0)
		die(errno, "no memory");
	if (!mkdtemp(path))
		die(errno, "cannot make a directory %s", path);
	free(full);
	return path;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	/* What cannot be removed is reported by the rmdir() of its parent, at the latest. */
	if (remove(path) && errno != ENOENT)
		perror(path);
	return 0;
}

void remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
