/*
 * mount.nfs4 of the sandbox's machines, whose kernel is the host's: it stands for the kernel's NFS client. mount(8) runs
 * it as `mount.nfs4 SERVER:PATH TARGET -o OPTIONS`.
 *
 * The files are a directory of the host (BACKING) that the head has at PATH. They come through FUSE, so that this
 * behaves as a hard mount of NFS does:
 * - every call acts as its caller, root as nobody (root_squash);
 * - the server (head/usr/lib/sandbox/bin/nfsd) must export PATH to this machine's address, when it mounts and later;
 * - while the server does not answer, every call hangs, and goes on when it answers again. SIGKILL ends it.
 *
 * The protocol: one line `PATH` up, one line down: `ok`, `ro`, or `denied`. The connection stays for the next question.
 */
#define FUSE_USE_VERSION 32
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BACKING "/var/lib/sandbox/share"
#define PORT 2049
#define ANSWER_S 2
#define ASK_EVERY_MS 500
#define LOOK_EVERY_MS 20
#define NOBODY 65534
#define GROUPS_MAX 1024
#define EXIT_FAILED 32 /* what mount(8) calls a failed mount */

enum answer { AWAY, DENIED, EXPORTED, EXPORTED_RO };

static int backing = -1;
static char server[64];
static char path_there[1024];
static volatile enum answer last_answer = AWAY;

/* ---- the server ---------------------------------------------------------------------------------------------------- */

static int dial(void)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    struct timeval limit = {.tv_sec = ANSWER_S};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (inet_pton(AF_INET, server, &to.sin_addr) == 1 && !connect(fd, (struct sockaddr *)&to, sizeof to))
        return fd;
    close(fd);
    return -1;
}

/* Asks once over the connection in *fd, which it makes or closes as needed. */
static enum answer ask(int *fd)
{
    char line[1100], answer[16];
    int length = snprintf(line, sizeof line, "%s\n", path_there);
    ssize_t got;

    if (*fd < 0 && (*fd = dial()) < 0)
        return AWAY;
    if (send(*fd, line, (size_t)length, MSG_NOSIGNAL) == length && (got = recv(*fd, answer, sizeof answer - 1, 0)) > 0) {
        answer[got] = 0;
        return !strcmp(answer, "ok\n") ? EXPORTED : !strcmp(answer, "ro\n") ? EXPORTED_RO : DENIED;
    }
    close(*fd);
    *fd = -1;
    return AWAY;
}

static void pause_ms(long milliseconds)
{
    struct timespec pause = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};

    nanosleep(&pause, NULL);
}

static void *watch(void *unused)
{
    int fd = -1;

    (void)unused;
    for (;;) {
        last_answer = ask(&fd);
        pause_ms(ASK_EVERY_MS);
    }
    return NULL;
}

/* ---- each call: wait for the server, then act as the caller --------------------------------------------------------- */

static gid_t squashed(gid_t id)
{
    return id ? id : NOBODY;
}

/* Whether a thread is being killed: that ends a call on a hard mount too. Other signals do not. */
static int killed(pid_t thread)
{
    char name[64], line[128];
    unsigned long long pending, all = 0;
    FILE *status;

    snprintf(name, sizeof name, "/proc/%d/status", (int)thread);
    status = fopen(name, "re");
    if (!status)
        return 1;
    while (fgets(line, sizeof line, status))
        if (sscanf(line, "SigPnd: %llx", &pending) == 1 || sscanf(line, "ShdPnd: %llx", &pending) == 1)
            all |= pending;
    fclose(status);
    return (all >> (SIGKILL - 1)) & 1;
}

static int enter(void)
{
    struct fuse_context *caller = fuse_get_context();
    gid_t groups[GROUPS_MAX];
    int count, i;

    while (last_answer == AWAY) {
        if (killed(caller->pid))
            return -EINTR;
        pause_ms(LOOK_EVERY_MS);
    }
    if (last_answer == DENIED)
        return -ESTALE;
    count = fuse_getgroups(GROUPS_MAX, groups);
    for (i = 0; i < count && i < GROUPS_MAX; i++)
        groups[i] = squashed(groups[i]);
    /* The system call itself, for this thread alone: the C library would change all threads. */
    syscall(SYS_setgroups, count < 0 ? 0 : i, groups);
    setfsgid(squashed(caller->gid));
    setfsuid(squashed(caller->uid));
    return 0;
}

static int leave(int failed)
{
    int result = failed ? -errno : 0;

    setfsuid(0);
    setfsgid(0);
    return result;
}

#define AS_CALLER(call) \
    do { \
        int refused = enter(); \
        return refused ? refused : leave((call) < 0); \
    } while (0)

static const char *below(const char *path)
{
    return path[1] ? path + 1 : ".";
}

/* ---- the calls ------------------------------------------------------------------------------------------------------ */

static int get_attributes(const char *path, struct stat *found, struct fuse_file_info *file)
{
    AS_CALLER(file ? fstat((int)file->fh, found) : fstatat(backing, below(path), found, AT_SYMLINK_NOFOLLOW));
}

static int may(const char *path, int mask)
{
    AS_CALLER((int)syscall(SYS_faccessat2, backing, below(path), mask, AT_EACCESS | AT_SYMLINK_NOFOLLOW));
}

static int read_link(const char *path, char *text, size_t size)
{
    int refused = enter();
    ssize_t length;

    if (refused)
        return refused;
    length = readlinkat(backing, below(path), text, size - 1);
    if (length >= 0)
        text[length] = 0;
    return leave(length < 0);
}

static int make_node(const char *path, mode_t mode, dev_t device)
{
    AS_CALLER(mknodat(backing, below(path), mode, device));
}

static int make_directory(const char *path, mode_t mode)
{
    AS_CALLER(mkdirat(backing, below(path), mode));
}

static int remove_file(const char *path)
{
    AS_CALLER(unlinkat(backing, below(path), 0));
}

static int remove_directory(const char *path)
{
    AS_CALLER(unlinkat(backing, below(path), AT_REMOVEDIR));
}

static int make_symlink(const char *text, const char *path)
{
    AS_CALLER(symlinkat(text, backing, below(path)));
}

static int move(const char *from, const char *to, unsigned flags)
{
    AS_CALLER(renameat2(backing, below(from), backing, below(to), flags));
}

static int make_link(const char *from, const char *to)
{
    AS_CALLER(linkat(backing, below(from), backing, below(to), 0));
}

static int change_mode(const char *path, mode_t mode, struct fuse_file_info *file)
{
    AS_CALLER(file ? fchmod((int)file->fh, mode) : fchmodat(backing, below(path), mode, 0));
}

static int change_owner(const char *path, uid_t uid, gid_t gid, struct fuse_file_info *file)
{
    AS_CALLER(file ? fchown((int)file->fh, uid, gid) : fchownat(backing, below(path), uid, gid, AT_SYMLINK_NOFOLLOW));
}

static int cut(const char *path, off_t size, struct fuse_file_info *file)
{
    int refused, fd, result;

    if (file)
        AS_CALLER(ftruncate((int)file->fh, size));
    refused = enter();
    if (refused)
        return refused;
    fd = openat(backing, below(path), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    result = fd < 0 ? -1 : ftruncate(fd, size);
    result = leave(result < 0);
    if (fd >= 0)
        close(fd);
    return result;
}

static int set_times(const char *path, const struct timespec times[2], struct fuse_file_info *file)
{
    AS_CALLER(file ? futimens((int)file->fh, times) : utimensat(backing, below(path), times, AT_SYMLINK_NOFOLLOW));
}

static int open_with(const char *path, struct fuse_file_info *file, int flags, mode_t mode)
{
    int refused = enter(), fd;

    if (refused)
        return refused;
    fd = openat(backing, below(path), flags | O_NOFOLLOW | O_CLOEXEC, mode);
    file->fh = (uint64_t)fd;
    return leave(fd < 0);
}

static int open_file(const char *path, struct fuse_file_info *file)
{
    return open_with(path, file, file->flags & ~(O_NOCTTY | O_CREAT | O_EXCL), 0);
}

static int create_file(const char *path, mode_t mode, struct fuse_file_info *file)
{
    return open_with(path, file, file->flags | O_CREAT, mode);
}

static int read_file(const char *path, char *text, size_t size, off_t at, struct fuse_file_info *file)
{
    int refused = enter();
    ssize_t got;

    (void)path;
    if (refused)
        return refused;
    got = pread((int)file->fh, text, size, at);
    return got < 0 ? leave(1) : (leave(0), (int)got);
}

static int write_file(const char *path, const char *text, size_t size, off_t at, struct fuse_file_info *file)
{
    int refused = enter();
    ssize_t put;

    (void)path;
    if (refused)
        return refused;
    put = pwrite((int)file->fh, text, size, at);
    return put < 0 ? leave(1) : (leave(0), (int)put);
}

static int get_space(const char *path, struct statvfs *found)
{
    (void)path;
    AS_CALLER(fstatvfs(backing, found));
}

static int close_file(const char *path, struct fuse_file_info *file)
{
    (void)path;
    return close((int)file->fh) < 0 ? -errno : 0;
}

static int sync_file(const char *path, int only_data, struct fuse_file_info *file)
{
    (void)path;
    AS_CALLER(only_data ? fdatasync((int)file->fh) : fsync((int)file->fh));
}

static int open_directory(const char *path, struct fuse_file_info *file)
{
    return open_with(path, file, O_RDONLY | O_DIRECTORY, 0);
}

static int list(const char *path, void *buffer, fuse_fill_dir_t fill, off_t at, struct fuse_file_info *file,
                enum fuse_readdir_flags flags)
{
    int refused = enter(), fd;
    struct dirent *entry;
    DIR *directory;

    (void)path, (void)at, (void)flags;
    if (refused)
        return refused;
    fd = openat((int)file->fh, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory)
        return leave(1);
    while ((entry = readdir(directory))) {
        struct stat known = {.st_ino = entry->d_ino, .st_mode = (mode_t)entry->d_type << 12};

        if (fill(buffer, entry->d_name, &known, 0, 0))
            break;
    }
    closedir(directory);
    return leave(0);
}

static int reserve(const char *path, int mode, off_t at, off_t size, struct fuse_file_info *file)
{
    (void)path;
    AS_CALLER(fallocate((int)file->fh, mode, at, size));
}

static int lock_whole(const char *path, struct fuse_file_info *file, int operation)
{
    (void)path;
    AS_CALLER(flock((int)file->fh, operation));
}

static int lock_part(const char *path, struct fuse_file_info *file, int command, struct flock *part)
{
    int here = command == F_GETLK ? F_OFD_GETLK : command == F_SETLK ? F_OFD_SETLK : F_OFD_SETLKW;

    (void)path;
    part->l_pid = 0;
    AS_CALLER(fcntl((int)file->fh, here, part));
}

static void *begin(struct fuse_conn_info *connection, struct fuse_config *config)
{
    pthread_t thread;

    (void)connection;
    config->use_ino = 1;
    config->negative_timeout = 0;
    config->entry_timeout = config->attr_timeout = 1;
    if (pthread_create(&thread, NULL, watch, NULL))
        exit(EXIT_FAILED);
    return NULL;
}

static const struct fuse_operations operations = {
    .init = begin,
    .getattr = get_attributes,
    .access = may,
    .readlink = read_link,
    .mknod = make_node,
    .mkdir = make_directory,
    .unlink = remove_file,
    .rmdir = remove_directory,
    .symlink = make_symlink,
    .rename = move,
    .link = make_link,
    .chmod = change_mode,
    .chown = change_owner,
    .truncate = cut,
    .utimens = set_times,
    .open = open_file,
    .create = create_file,
    .read = read_file,
    .write = write_file,
    .statfs = get_space,
    .release = close_file,
    .fsync = sync_file,
    .opendir = open_directory,
    .readdir = list,
    .releasedir = close_file,
    .fallocate = reserve,
    .flock = lock_whole,
    .lock = lock_part,
};

/* ---- the mount ------------------------------------------------------------------------------------------------------ */

/* A kernel's mount outlives the service that made it: so does this process, beside the machine's first one. */
static void leave_service(void)
{
    char line[512], file[600];
    FILE *group = fopen("/proc/1/cgroup", "re"), *processes;

    while (group && fgets(line, sizeof line, group)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::", 3))
            continue;
        snprintf(file, sizeof file, "/sys/fs/cgroup%s/cgroup.procs", line + 3);
        processes = fopen(file, "we");
        if (!processes)
            continue;
        fprintf(processes, "%d\n", (int)getpid());
        fclose(processes);
    }
    if (group)
        fclose(group);
}

static int serve(const char *source, const char *target, const char *options, int ready)
{
    char words[2048];
    char *argv[] = {(char *)"mount.nfs4", (char *)"-o", words, NULL};
    struct fuse_args arguments = FUSE_ARGS_INIT(3, argv);
    struct fuse_loop_config loop = {.clone_fd = 0, .max_idle_threads = 10};
    struct fuse *fuse;

    snprintf(words, sizeof words, "allow_other,fsname=%s,subtype=nfs4%s", source, options);
    umask(0);
    leave_service();
    fuse = fuse_new(&arguments, &operations, sizeof operations, NULL);
    if (!fuse || fuse_mount(fuse, target))
        return EXIT_FAILED;
    if (write(ready, "1", 1) != 1 || setsid() < 0 || chdir("/"))
        return EXIT_FAILED;
    close(ready);
    for (int fd = 0; fd < 3; fd++)
        dup2(open("/dev/null", O_RDWR), fd);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    fuse_loop_mt(fuse, &loop);
    _exit(0); /* not fuse_unmount: what is mounted there by now may be another's */
}

/* Those of the mount's options that the kernel's file systems share; others are NFS's. */
static void common_options(const char *given, int read_only, char *kept, size_t size)
{
    static const char *const known[] = {"nosuid", "nodev", "noatime", "noexec"};
    char *copy = strdup(given), *rest = copy, *word;

    snprintf(kept, size, "%s", read_only ? ",ro" : "");
    while (copy && (word = strsep(&rest, ","))) {
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            if (!strcmp(word, known[i]) && strlen(kept) + strlen(word) + 2 < size)
                strcat(strcat(kept, ","), word);
        if (!strcmp(word, "ro") && !read_only)
            strcat(kept, ",ro");
    }
    free(copy);
}

static int fail(const char *why, const char *source)
{
    fprintf(stderr, "mount.nfs4: %s while mounting %s\n", why, source);
    return EXIT_FAILED;
}

int main(int argc, char **argv)
{
    const char *source = argc > 2 ? argv[1] : "", *target = argc > 2 ? argv[2] : "", *given = "";
    const char *colon = strchr(source, ':');
    char options[256], place[1100], ready;
    int fd = -1, option, ends[2];
    enum answer answer;

    while ((option = getopt(argc, argv, "+sfnvho:")) != -1 || optind < argc) {
        if (option == -1)
            optind++; /* the source and the target come first */
        else if (option == 'o')
            given = optarg;
    }
    if (!colon || colon == source || (size_t)(colon - source) >= sizeof server || colon[1] != '/' ||
        strlen(colon + 1) >= sizeof path_there)
        return fail("it is no SERVER:PATH", source);
    memcpy(server, source, (size_t)(colon - source));
    strcpy(path_there, colon + 1);
    answer = ask(&fd);
    if (answer == AWAY)
        return fail("Connection timed out", source);
    if (answer == DENIED)
        return fail("access denied by server", source);
    common_options(given, answer == EXPORTED_RO, options, sizeof options);
    snprintf(place, sizeof place, "%s%s", BACKING, path_there);
    backing = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (backing < 0)
        return fail("No such file or directory", source);
    last_answer = answer;
    if (pipe(ends))
        return fail("no pipe", source);
    if (!fork()) {
        close(ends[0]);
        _exit(serve(source, target, options, ends[1]));
    }
    close(ends[1]);
    return read(ends[0], &ready, 1) == 1 ? 0 : fail("FUSE failed", source);
}
