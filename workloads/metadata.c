// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * metadata: processes that create, rename and unlink files in one tmpfs tree.
 *
 * Two workers share a directory, as a few programs do in a mail spool, a build tree or
 * a package cache. A file gets its final name by a rename in its directory (editors,
 * git, dpkg); every 16th goes to the neighbouring directory (Maildir's tmp/ to new/).
 *
 * Faithful to: the locking of the VFS, as tmpfs adds next to nothing of its own. Seen
 * contended (lock:contention_begin, Linux 6.18, 2 CPUs): the spinlocks of shared dentries
 * (lockref), rename_lock (d_move), s_inode_list_lock and stat_lock (new_inode, evict) for
 * about 60 %, and s_vfs_rename_mutex of renames between directories for 40 %.
 * --dirs 1 --cross 0 is one hot directory: only its dentry's lock and its i_rwsem.
 * --dirs N --cross 0 with as many directories as workers leaves only what all of the
 * file system shares. --cross 4 is mostly s_vfs_rename_mutex.
 *
 * Not faithful to: a file system with a journal or a disk. Files stay empty.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "common.h"

static const char *parent = "/tmp";
static const char *dirs_text;
static const char *cross_text = "16";

static unsigned int nr_dirs;
static unsigned int cross;
static char *tree;

static void prepare(void)
{
	struct statfs fs;
	char path[16];
	unsigned int i;

	nr_dirs = dirs_text ? number("dirs", dirs_text, 1, COUNTERS_MAX_SLOTS)
			    : (workload_args.threads + 1) / 2;
	cross = number("cross", cross_text, 0, 1000000);
	if (statfs(parent, &fs))
		die(errno, "cannot use the directory %s", parent);
	if (fs.f_type != TMPFS_MAGIC)
		die(0, "%s is not on a tmpfs; name one that is with --dir", parent);
	tree = make_temp_dir(parent, "metadata");
	if (chdir(tree))
		die(errno, "cannot enter %s", tree);
	for (i = 0; i < nr_dirs; i++) {
		snprintf(path, sizeof(path), "%u", i);
		if (mkdir(path, 0755))
			die(errno, "cannot make the directory %s/%s", tree, path);
	}
}

static void cleanup(void)
{
	remove_tree(tree);
}

static void work(unsigned int worker, struct counters_slot *slot)
{
	unsigned int dir = worker % nr_dirs, next = (dir + 1) % nr_dirs, n;
	char from[32], same[32], neighbour[32];
	const char *to;
	uint64_t start_ns;
	int fd;

	snprintf(from, sizeof(from), "%u/%u.tmp", dir, worker);
	snprintf(same, sizeof(same), "%u/%u", dir, worker);
	snprintf(neighbour, sizeof(neighbour), "%u/%u", next, worker);
	for (n = 0;; n++) {
		to = cross && n % cross == 0 ? neighbour : same;
		start_ns = now_ns();
		fd = open(from, O_WRONLY | O_CREAT | O_EXCL, 0644);
		if (fd < 0)
			die(errno, "cannot create %s/%s", tree, from);
		close(fd);
		if (rename(from, to))
			die(errno, "cannot rename %s/%s to %s", tree, from, to);
		if (unlink(to))
			die(errno, "cannot remove %s/%s", tree, to);
		counters_op(slot, now_ns() - start_ns);
	}
}

int main(int argc, char **argv)
{
	static const struct workload_option options[] = {
		{ "dir", "DIR", "work below DIR, on a tmpfs", &parent },
		{ "dirs", "N", "directories in the tree (default half of --threads)", &dirs_text },
		{ "cross", "N", "every Nth rename goes to the next directory; 0: none",
		  &cross_text },
		{ 0 },
	};
	static const struct workload workload = {
		.about = "Processes that create, rename and unlink files in one tree on tmpfs.",
		.op = "create, rename and unlink of one file",
		.options = options,
		.threads = 8,
		.processes = true,
		.prepare = prepare,
		.work = work,
		.cleanup = cleanup,
	};

	return workload_main(&workload, argc, argv);
}
