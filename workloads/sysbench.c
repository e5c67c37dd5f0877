// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * sysbench: Debian's sysbench, `fileio` on tmpfs: blocks of a page, read and written at
 * random places of 16 files, three reads to two writes, as a database asks for them.
 *
 * Faithful to: sysbench itself: one process of --threads threads that share file
 * descriptors, a mutex and its counters; the page cache's locks and, for each write,
 * the inode's.
 *
 * Not faithful to: a disk. Nothing waits for a device, and fsync() has nothing to do
 * on tmpfs: it is left out.
 *
 * Progress is read from the kernel's own accounting of its reads (/proc/PID/io,
 * rchar), every 20 ms; writes keep their ratio and are not counted. Single blocks are
 * not timed, so there is no histogram.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

#define BLOCK_BYTES 4096

static const char *program = "/usr/bin/sysbench";
static const char *parent = "/tmp";
static const char *mode = "rndrw";

static char *directory;

/* The command line of one step: prepare, run or cleanup. */
static pid_t start(const char *step)
{
	char threads[32];
	char test_mode[64];
	char *argv[] = { (char *)program,
			 threads,
			 "--time=0",
			 "--percentile=0",
			 "fileio",
			 test_mode,
			 "--file-num=16",
			 "--file-total-size=4M",
			 "--file-block-size=4096",
			 "--file-fsync-freq=0",
			 "--file-fsync-end=off",
			 (char *)step,
			 NULL };

	snprintf(threads, sizeof(threads), "--threads=%u", workload_args.threads);
	snprintf(test_mode, sizeof(test_mode), "--file-test-mode=%s", mode);
	return spawn(argv, -1, -1);
}

static void check(int status, const char *step)
{
	if (status)
		die(0, "%s fileio %s failed with wait status %#x", program, step, status);
}

/* Its files are in the directory it is started in. */
static void prepare(void)
{
	if (strcmp(mode, "rndrw") && strcmp(mode, "rndrd"))
		usage_error("--mode is rndrw or rndrd, not '%s'", mode);
	directory = make_temp_dir(parent, "sysbench");
	if (chdir(directory))
		die(errno, "cannot use %s", directory);
	check(wait_for(start("prepare")), "prepare");
}

static void cleanup(void)
{
	remove_tree(directory);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	pid_t pid = start("run");

	(void)worker;
	count_reads_until_end(pid, slot, BLOCK_BYTES);
	check(wait_for(pid), "run");
	die(0, "%s ended by itself", program);
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "mode", "MODE", "rndrw, or rndrd: reads only", &mode },
		{ "dir", "DIR", "files below DIR, on a tmpfs", &parent },
		{ "program", "PATH", "sysbench", &program },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "sysbench fileio with --threads threads.",
		.op = "a page read at a random place, and in mode rndrw two thirds of one written",
		.options = options,
		.threads = 8,
		.workers = 1,
		.processes = true,
		.prepare = prepare,
		.work = work,
		.cleanup = cleanup,
	};

	return workload_main(&workload, argc, argv);
}
