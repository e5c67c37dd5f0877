// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * build: `make -jN` and `make clean` of a real C program with a real compiler,
 * over and over, on tmpfs. Kernbench in miniature.
 *
 * The program is Lua 5.4 with its own Makefile, the compiler tcc: an object takes
 * a few milliseconds natively. make runs `build cc COUNTERS COMPILER ...` as its
 * compiler, which runs the real one and counts. In a doubly emulated guest few
 * objects are done in a second, so one operation is a KiB of C the compiler has
 * read, headers included, looked up every 20 ms in the kernel's own accounting
 * (/proc/PID/io, rchar). The histogram has the times of whole compilations.
 *
 * Faithful to: what a build asks of the kernel: vfork, exec, exit and wait, page
 * faults on file mappings and fresh memory, path look-ups, small files, pipes
 * (make's jobserver); most time spent in user mode; and stretches with fewer jobs
 * than N (linking, which counts nothing).
 *
 * A build has its phases, so a window has to hold several whole ones, or parts of several
 * that are not in step: --builds N are N builds side by side, each with its share of --threads,
 * the second of four a quarter of its objects behind the first and so on.
 *
 * Not faithful to: the proportions of gcc, which spends far more in user mode per
 * object, and reading sources from a disk. The counting adds one small static
 * program to each compilation.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static const char *source = "/usr/src/lua";
static const char *parent = "/tmp";
static const char *make = "/usr/bin/make";
static const char *compiler = "/usr/bin/tcc";
static const char *archiver = "/usr/bin/tcc -ar rcs";

static const char *builds_text = "1";

/* The copies that are built, one in each of its subdirectories. */
static char *trees;
/* How make is told of the compiler and the archiver. */
static char *cc, *ar;
/* What the sources compile to. */
static char **objects;
static unsigned int nr_objects;

/* Prints into fresh memory. */
static char *text(const char *format, const char *a, const char *b, const char *c)
{
	char *result;

	if (asprintf(&result, format, a, b, c) < 0)
		die(errno, "no memory");
	return result;
}

static void copy_file(int from_dir, int to_dir, const char *name, const char *tree)
{
	int from = openat(from_dir, name, O_RDONLY | O_CLOEXEC);
	int to = openat(to_dir, name, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	ssize_t n;

	do {
		n = sendfile(to, from, NULL, 1 << 20);
	} while (n > 0);
	if (n < 0 || close(from) || close(to))
		die(errno, "cannot copy %s/%s to %s", source, name, tree);
}

static char *tree_of(unsigned int build)
{
	char number[16];

	snprintf(number, sizeof(number), "%u", build);
	return text("%s/%s", trees, number, "");
}

/* Sources lie in one directory, as Lua's do. */
static void copy_sources(const char *tree)
{
	DIR *dir = opendir(source);
	struct dirent *entry;
	struct stat st;
	int to;

	if (!dir || faccessat(dirfd(dir), "Makefile", R_OK, 0))
		die(errno, "no Makefile in %s; name the sources with --source", source);
	if (mkdir(tree, 0755))
		die(errno, "cannot make %s", tree);
	to = open(tree, O_DIRECTORY | O_CLOEXEC);
	while ((entry = readdir(dir)))
		if (!fstatat(dirfd(dir), entry->d_name, &st, 0) && S_ISREG(st.st_mode))
			copy_file(dirfd(dir), to, entry->d_name, tree);
	closedir(dir);
	close(to);
}

static void list_objects(void)
{
	DIR *dir = opendir(source);
	struct dirent *entry;
	char *name;

	while (dir && (entry = readdir(dir))) {
		size_t length = strlen(entry->d_name);

		if (length < 3 || strcmp(entry->d_name + length - 2, ".c"))
			continue;
		name = text("%s", entry->d_name, "", "");
		name[length - 1] = 'o';
		objects = realloc(objects, (nr_objects + 2) * sizeof(*objects));
		if (!objects)
			die(errno, "no memory");
		objects[nr_objects++] = name;
		objects[nr_objects] = NULL;
	}
	if (dir)
		closedir(dir);
}

static void prepare(void);
static void work(unsigned int worker, struct counters_slot *slot);
static void cleanup(void);

static const struct workload_option options[] = {
	{ "source", "DIR", "C sources with a Makefile like Lua's", &source },
	{ "dir", "DIR", "build copies below DIR, on a tmpfs", &parent },
	{ "make", "PATH", "GNU make", &make },
	{ "cc", "PATH", "compiler", &compiler },
	{ "ar", "COMMAND", "archiver and its flags", &archiver },
	{ "builds", "N", "builds side by side, which share --threads", &builds_text },
	{ 0 },
};

static struct workload workload = {
	.about = "Builds of a C program with make -jN (N: --threads) and a real compiler.",
	.op = "one KiB of C read by the compiler; the histogram times objects",
	.options = options,
	.threads = 8,
	.workers = 1,
	.processes = true,
	.prepare = prepare,
	.work = work,
	.cleanup = cleanup,
};

static void prepare(void)
{
	char self[4096] = "";
	unsigned int i;

	workload.workers = number("builds", builds_text, 1, workload_args.threads);
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		die(errno, "cannot find this program in /proc");
	cc = text("CC=%s cc %s %s", self, workload_args.counters, compiler);
	ar = text("AR=%s", archiver, "", "");
	list_objects();
	trees = make_temp_dir(parent, "build");
	for (i = 0; i < workload.workers; i++)
		copy_sources(tree_of(i));
	/* A make that started us must not lend us its job server. */
	unsetenv("MAKEFLAGS");
	unsetenv("MFLAGS");
	unsetenv("MAKELEVEL");
}

static void cleanup(void)
{
	remove_tree(trees);
}

static void run(char *const argv[], const char *what)
{
	int status = wait_for(spawn(argv, -1, -1));

	if (status)
		die(0, "%s of %s failed with wait status %#x", what, source, status);
}

/* make in @tree of @targets, which end with NULL, with @jobs. */
static void make_targets(char *tree, const char *jobs, char **targets, const char *what)
{
	char *argv[8 + nr_objects + 2];
	unsigned int n = 0;

	argv[n++] = (char *)make;
	argv[n++] = "-C";
	argv[n++] = tree;
	argv[n++] = (char *)jobs;
	argv[n++] = cc;
	argv[n++] = ar;
	argv[n++] = "RANLIB=/bin/true";
	argv[n++] = "SYSCFLAGS=-DLUA_USE_LINUX";
	while (*targets)
		argv[n++] = *targets++;
	argv[n] = NULL;
	run(argv, what);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	char *all[] = { "all", NULL }, *tree = tree_of(worker), jobs[16];
	char *clean[] = { (char *)make, "-C", tree, "clean", "RM=/bin/rm -f", NULL };
	unsigned int behind = nr_objects * worker / workload.workers;

	/* The compilers claim the slots, see counters_claim(). */
	(void)slot;
	snprintf(jobs, sizeof(jobs), "-j%u",
		 (workload_args.threads + workload.workers - 1) / workload.workers);
	if (behind) {
		objects[behind] = NULL;
		make_targets(tree, jobs, objects, "make of some objects");
		run(clean, "make clean");
	}
	for (;;) {
		make_targets(tree, jobs, all, "make all");
		run(clean, "make clean");
	}
}

/* build cc COUNTERS COMPILER ARGUMENT...: one compilation, counted, or one link. */
static int compile(char **argv)
{
	struct counters_slot *slot;
	uint64_t start_ns;
	bool links = true;
	pid_t pid;
	int i;

	/* make does not ask for this. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (i = 4; argv[i]; i++)
		if (!strcmp(argv[i], "-c"))
			links = false;
	start_ns = now_ns();
	pid = spawn(argv + 3, -1, -1);
	if (links)
		return wait_for(pid) ? 1 : 0;

	slot = counters_claim(argv[2]);
	count_reads_until_end(pid, slot, 1024);
	if (wait_for(pid))
		return 1;
	counters_time(slot, now_ns() - start_ns);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 3 && !strcmp(argv[1], "cc"))
		return compile(argv);
	return workload_main(&workload, argc, argv);
}
