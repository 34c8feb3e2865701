/* libslurmconf: settings of this machine's own, after those that slurmd gets from the head.
 *
 * A slurmd started with --conf-server keeps the head's files in SPOOL/conf-cache: when it starts, and at each
 * `scontrol reconfigure`. It stores each as NAME.new and renames it to NAME, or removes NAME where the head has none
 * (src/common/fetch_config.c, _write_conf). Preloaded into slurmd, this library appends the file $MESHD_SLURM_LOCAL/NAME
 * to it. The last value of a setting is in force. slurmd, slurmstepd and the commands on this machine all read the result.
 *
 * Without $MESHD_SLURM_LOCAL, and for all other files, rename() and unlink() are the C library's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char conf_cache[] = "/conf-cache/";

/* The path of the local settings for a file that slurmd stores; false where there are none for it. */
static int local_path(const char *stored, char *path, size_t size)
{
	const char *directory = getenv("MESHD_SLURM_LOCAL");
	const char *name = strrchr(stored, '/');
	if (directory == NULL || name == NULL || (size_t)(name - stored) + 1 < sizeof conf_cache - 1)
		return 0;
	name++;
	if (strncmp(name - (sizeof conf_cache - 1), conf_cache, sizeof conf_cache - 1) != 0)
		return 0;
	int length = snprintf(path, size, "%s/%s", directory, name);
	return length > 0 && (size_t)length < size && access(path, R_OK) == 0;
}

static int write_all(int fd, const char *data, ssize_t size)
{
	while (size > 0) {
		ssize_t done = write(fd, data, (size_t)size);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -1;
		data += done;
		size -= done;
	}
	return 0;
}

static int copy(int from, int to)
{
	char buffer[4096];
	ssize_t size;
	/* The stored file may end without a line break, or in a comment. */
	if (write_all(to, "\n", 1) < 0)
		return -1;
	while ((size = read(from, buffer, sizeof buffer)) != 0) {
		if (size < 0 && errno != EINTR)
			return -1;
		if (size > 0 && write_all(to, buffer, size) < 0)
			return -1;
	}
	return 0;
}

/* Append one file to another, which is made where it is missing. Returns -1 with errno. */
static int append(const char *local, const char *path)
{
	int result = -1;
	int from = open(local, O_RDONLY | O_CLOEXEC);
	if (from < 0)
		return -1;
	int to = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
	if (to >= 0) {
		result = copy(from, to);
		if (close(to) < 0)
			result = -1;
	}
	close(from);
	return result;
}

typedef int (*rename_function)(const char *, const char *);
typedef int (*unlink_function)(const char *);

static int next_rename(const char *old, const char *new)
{
	rename_function next;
	*(void **)&next = dlsym(RTLD_NEXT, "rename");
	return next(old, new);
}

int rename(const char *old, const char *new)
{
	char local[PATH_MAX];
	if (local_path(new, local, sizeof local) && append(local, old) < 0)
		return -1;
	return next_rename(old, new);
}

int unlink(const char *path)
{
	char local[PATH_MAX], made[PATH_MAX];
	unlink_function next;
	*(void **)&next = dlsym(RTLD_NEXT, "unlink");
	int result = next(path), error = errno;
	if (!local_path(path, local, sizeof local))
		return result;
	int length = snprintf(made, sizeof made, "%s.new", path);
	if (length < 0 || (size_t)length >= sizeof made)
		return result;
	next(made);
	if (append(local, made) < 0 || next_rename(made, path) < 0)
		return -1;
	errno = error;
	return result;
}
