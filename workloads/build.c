// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * build: `make -jN` and `make clean` of real C sources with a real compiler, over
 * and over, on tmpfs. Kernbench in miniature.
 *
 * The sources are those of Lua 5.4, compiled once into each of many directories, as
 * a large program has them; the compiler is tcc: an object takes a few milliseconds
 * natively. make runs `build cc COUNTERS COMPILER ...` as its compiler, which runs
 * the real one and counts. In a doubly emulated guest few objects are done in a
 * second, so one operation is a KiB of C the compiler has read, headers included,
 * looked up every 20 ms in the kernel's own accounting (/proc/PID/io, rchar). The
 * histogram has the times of whole compilations.
 *
 * Faithful to: a build's use of the kernel: vfork, exec, exit and wait, page
 * faults on file mappings and fresh memory, path look-ups, small files, pipes
 * (make's jobserver); most time spent in user mode; N jobs nearly all the time, as
 * only the end of a build, which takes many seconds in a guest, waits for the last.
 *
 * Not faithful to: the proportions of gcc, which spends far more in user mode per
 * object, reading sources from a disk, and linking. The counting adds one small
 * static program to each compilation.
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
static const char *flags = "-DLUA_USE_LINUX";

static char *tree;

/* A program of thousands of objects is not finished within a measurement. */
#define NR_DIRECTORIES 32

static const char makefile[] =
	"SOURCES := $(wildcard *.c)\n"
	"DIRECTORIES := $(sort $(dir $(wildcard */.)))\n"
	"OBJECTS := $(foreach d,$(DIRECTORIES),$(addprefix $(d),$(SOURCES:.c=.o)))\n"
	"all: $(OBJECTS)\n"
	"clean:\n"
	"\t$(RM) */*.o\n"
	".PHONY: all clean\n"
	".SECONDEXPANSION:\n"
	"$(OBJECTS): %.o: $$(*F).c\n"
	"\t$(CC) $(CFLAGS) -c -o $@ $<\n";

/* Prints into fresh memory. */
static char *text(const char *format, const char *a, const char *b, const char *c)
{
	char *result;

	if (asprintf(&result, format, a, b, c) < 0)
		die(errno, "no memory");
	return result;
}

static void copy_file(int from_dir, int to_dir, const char *name)
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

static void write_makefile(int dir)
{
	int fd = openat(dir, "Makefile", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	ssize_t len = sizeof(makefile) - 1;

	if (fd < 0 || write(fd, makefile, len) != len || close(fd))
		die(errno, "cannot write %s/Makefile", tree);
}

/* Each instance builds a copy of its own. Sources lie in one directory, as Lua's do. */
static void prepare(void)
{
	DIR *dir = opendir(source);
	struct dirent *entry;
	struct stat st;
	char name[16];
	int to, i;

	if (!dir)
		die(errno, "cannot open %s; name the sources with --source", source);
	tree = make_temp_dir(parent, "build");
	to = open(tree, O_DIRECTORY | O_CLOEXEC);
	while ((entry = readdir(dir)))
		if (!fstatat(dirfd(dir), entry->d_name, &st, 0) && S_ISREG(st.st_mode))
			copy_file(dirfd(dir), to, entry->d_name);
	closedir(dir);
	write_makefile(to);
	for (i = 0; i < NR_DIRECTORIES; i++) {
		snprintf(name, sizeof(name), "part%02d", i);
		if (mkdirat(to, name, 0755))
			die(errno, "cannot make %s/%s", tree, name);
	}
	close(to);
	/* A make that started us must not lend us its job server. */
	unsetenv("MAKEFLAGS");
	unsetenv("MFLAGS");
	unsetenv("MAKELEVEL");
}

static void cleanup(void)
{
	remove_tree(tree);
}

static void run(char *const argv[], const char *what)
{
	int status = wait_for(spawn(argv, -1, -1));

	if (status)
		die(0, "%s of %s failed with wait status %#x", what, source, status);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	char self[4096] = "", jobs[16];
	char *build[] = { (char *)make,
			  "-C",
			  tree,
			  jobs,
			  "all",
			  NULL /* CC */,
			  text("CFLAGS=%s", flags, "", ""),
			  NULL };
	char *clean[] = { (char *)make, "-C", tree, "clean", "RM=/bin/rm -f", NULL };

	/* The compilers claim the slots, see counters_claim(). */
	(void)worker;
	(void)slot;
	snprintf(jobs, sizeof(jobs), "-j%u", workload_args.threads);
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		die(errno, "cannot find this program in /proc");
	build[5] = text("CC=%s cc %s %s", self, workload_args.counters, compiler);
	for (;;) {
		run(build, "make all");
		run(clean, "make clean");
	}
}

/* build cc COUNTERS COMPILER ARGUMENT...: one compilation, counted. */
static int compile(char **argv)
{
	struct counters_slot *slot;
	uint64_t start_ns;
	pid_t pid;

	/* make never does this. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	start_ns = now_ns();
	pid = spawn(argv + 3, -1, -1);
	slot = counters_claim(argv[2]);
	count_reads_until_end(pid, slot, 1024);
	if (wait_for(pid))
		return 1;
	counters_time(slot, now_ns() - start_ns);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "source", "DIR", "C sources, all in one directory", &source },
		{ "dir", "DIR", "build a copy below DIR, on a tmpfs", &parent },
		{ "make", "PATH", "GNU make", &make },
		{ "cc", "PATH", "compiler", &compiler },
		{ "cflags", "FLAGS", "the compiler's flags beside -c", &flags },
		{ 0 },
	};
	static const struct workload workload = {
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

	if (argc > 3 && !strcmp(argv[1], "cc"))
		return compile(argv);
	return workload_main(&workload, argc, argv);
}
