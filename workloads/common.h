/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The common parts of every workload: its command line, its workers, its counter
 * file and its end. A workload is a description and one endless function.
 */
#ifndef HOLDFAST_COMMON_H
#define HOLDFAST_COMMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "counters.h"

/* An option of one workload, beside the common ones. Unset, *value keeps its default. */
struct workload_option {
	const char *name;
	const char *arg;
	const char *help;
	const char **value;
};

struct workload {
	const char *about;		       /* what it does, one line of --help */
	const char *op;			       /* what one operation is, one line of --help */
	const struct workload_option *options; /* ends with a NULL name; may be NULL */
	unsigned int threads;		       /* --threads unless given */
	unsigned int workers;		       /* how many to start; 0: as many as --threads */
	bool pin;			       /* worker i to CPU i, unless --no-pin */
	/* Workers are processes, each the leader of its group, or threads of one process. */
	bool processes;
	/* Called once, before the workers start; dies on failure. May be NULL. */
	void (*prepare)(void);
	/* One worker. Does not return; a failure that ends it ends the workload. */
	void (*work)(unsigned int worker, struct counters_slot *slot);
	/* Called once, after the last worker is gone. May be NULL. */
	void (*cleanup)(void);
};

/* The options all workloads have, as given. */
struct workload_args {
	const char *counters; /* a path, even without --counters */
	unsigned int threads;
	unsigned int seconds; /* 0: until SIGTERM */
	bool pin;
	bool print;
};

extern struct workload_args workload_args;

/* Fills workload_args and the values of w's own options; exits with 2 if it cannot. */
void parse_args(const struct workload *w, int argc, char **argv);

/* The whole of main(). */
int workload_main(const struct workload *w, int argc, char **argv);

/* Prints "PROGRAM: MESSAGE" and, if errno_value is not 0, its text; exits with 1. */
_Noreturn void die(int errno_value, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same, with 2 and a hint at --help, for errors of the command line. */
_Noreturn void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The value of a numeric option, or a usage error (exit 2) that names the option. */
unsigned long number(const char *option, const char *text, unsigned long min, unsigned long max);

/*
 * Makes, zeroes and maps the counter file at *path. A file in use by another
 * workload is refused. The path becomes absolute; NULL becomes the path of an
 * unnamed file.
 */
struct counters_header *counters_map(const char **path, unsigned int nr_slots);

/* For a process: a slot of a mapped counter file, exclusively until it exits. */
struct counters_slot *counters_claim(const char *path);

/* Prints operations per second and the sum of all histograms, as bcc's tools do. */
void counters_print(struct counters_header *c, uint64_t elapsed_ns);

/*
 * Starts argv with standard input and output in and out (-1: /dev/null), and our
 * standard error. The child dies with its parent and stays in the parent's process group.
 */
pid_t spawn(char *const argv[], int in, int out);

/*
 * Bytes that a process has read so far, from the kernel's own accounting: the process
 * is unaware. 0 once it is gone; a process that was not waited for is not gone.
 */
int io_open(pid_t pid);
uint64_t io_bytes_read(int io);

/*
 * Until the child ends, and once more then, adds the progress of so_far(of) to the
 * slot. Returns the sum; the child is still to be waited for.
 */
uint64_t count_until_end(pid_t pid, struct counters_slot *slot, uint64_t (*so_far)(void *of),
			 void *of);

/* The same for the child's own reads, in units of this many bytes. */
void count_reads_until_end(pid_t pid, struct counters_slot *slot, uint64_t unit_bytes);

/* Waits for that child and gives its wait status. */
int wait_for(pid_t pid);

/* Makes a fresh directory below parent (its full path, allocated), and removes a directory with all
 * it contains. */
char *make_temp_dir(const char *parent, const char *name);
void remove_tree(const char *path);

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* CPU time of the calling thread. */
static inline uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
