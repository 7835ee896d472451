/* A disk that fails, for the files of one directory: preloaded into a process that uses them.
 *
 * DISK_UNDER is the directory, DISK_STATE a file whose first letter says what the disk does:
 * 'r' it is read-only, 'f' it is full, 'g' it has no room for files that grow (as a full disk that
 * is written to in place), anything else: it works. DISK_SHADOW is a directory that
 * holds what would be left after a power failure: what was written and then synced, nothing else.
 * A file is followed by its name; all of its descriptors are those of one process.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST_FILES 64
#define CHUNK 65536

struct range { off_t from, to; };
struct tracked { char name[256]; struct range *ranges; size_t used, room; };

static struct tracked files[MOST_FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static const char *name_of(int fd)
{
    static __thread char path[4096];
    char link[64];
    const char *under = getenv("DISK_UNDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!under || length < 0) return NULL;
    path[length] = 0;
    size_t deep = strlen(under);
    if (strncmp(path, under, deep) || path[deep] != '/') return NULL;
    /* The index of the log is memory that processes share: it does not outlive them. */
    if (length > 4 && !strcmp(path + length - 4, "-shm")) return NULL;
    return path + deep + 1;
}

static char state(void)
{
    const char *path = getenv("DISK_STATE");
    char letter = 0;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        if (read(fd, &letter, 1) != 1) letter = 0;
        close(fd);
    }
    return letter;
}

static int fails(void)
{
    char letter = state();
    errno = letter == 'r' ? EROFS : letter == 'f' ? ENOSPC : 0;
    return errno != 0;
}

static int fails_at(int fd, off_t end)
{
    struct stat now;
    if (state() != 'g') return fails();
    errno = !fstat(fd, &now) && end > now.st_size ? ENOSPC : 0;
    return errno != 0;
}

static void note(const char *name, off_t from, off_t to)
{
    pthread_mutex_lock(&lock);
    for (int n = 0; n < MOST_FILES; n++) {
        struct tracked *file = &files[n];
        if (!file->name[0]) snprintf(file->name, sizeof file->name, "%s", name);
        if (strcmp(file->name, name)) continue;
        if (file->used == file->room) {
            file->room = file->room ? 2 * file->room : 64;
            file->ranges = realloc(file->ranges, file->room * sizeof *file->ranges);
            if (!file->ranges) abort();
        }
        file->ranges[file->used++] = (struct range){from, to};
        break;
    }
    pthread_mutex_unlock(&lock);
}

static void keep(int fd, const char *name)
{
    const char *shadow = getenv("DISK_SHADOW");
    char path[4608], chunk[CHUNK];
    struct stat now;
    if (!shadow || fstat(fd, &now)) return;
    snprintf(path, sizeof path, "%s/%s", shadow, name);
    int copy = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, "pwrite64");
    pthread_mutex_lock(&lock);
    for (int n = 0; n < MOST_FILES && files[n].name[0]; n++) {
        if (strcmp(files[n].name, name)) continue;
        for (size_t each = 0; each < files[n].used; each++) {
            struct range range = files[n].ranges[each];
            while (range.from < range.to) {
                size_t wanted = range.to - range.from > CHUNK ? CHUNK : range.to - range.from;
                ssize_t got = pread(fd, chunk, wanted, range.from);
                if (got <= 0) break;
                if (real(copy, chunk, got, range.from) != got) abort();
                range.from += got;
            }
        }
        files[n].used = 0;
    }
    pthread_mutex_unlock(&lock);
    int (*cut)(int, off_t) = dlsym(RTLD_NEXT, "ftruncate64");
    if (cut(copy, now.st_size)) abort();
    close(copy);
}

static ssize_t write_at(const char *real_name, int fd, const void *data, size_t size, off_t at)
{
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, real_name);
    const char *name = name_of(fd);
    if (!name) return real(fd, data, size, at);
    if (fails_at(fd, at + size)) return -1;
    char kept[256];
    snprintf(kept, sizeof kept, "%s", name);
    ssize_t written = real(fd, data, size, at);
    if (written > 0) note(kept, at, at + written);
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at)
{
    return write_at("pwrite", fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at)
{
    return write_at("pwrite64", fd, data, size, at);
}

/* What a server calls, whose disk is only ever full: nothing is kept in the shadow. */
static ssize_t write_all_at(const char *real_name, int fd, const struct iovec *parts, int count, off_t at)
{
    ssize_t (*real)(int, const struct iovec *, int, off_t) = dlsym(RTLD_NEXT, real_name);
    size_t size = 0;
    for (int n = 0; n < count; n++) size += parts[n].iov_len;
    if (name_of(fd) && fails_at(fd, at + size)) return -1;
    return real(fd, parts, count, at);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
    return write_all_at("pwritev", fd, parts, count, at);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at)
{
    return write_all_at("pwritev64", fd, parts, count, at);
}

static int allocate(const char *real_name, int fd, off_t from, off_t size)
{
    int (*real)(int, off_t, off_t) = dlsym(RTLD_NEXT, real_name);
    if (name_of(fd) && fails_at(fd, from + size)) return errno;
    return real(fd, from, size);
}

int posix_fallocate(int fd, off_t from, off_t size)
{
    return allocate("posix_fallocate", fd, from, size);
}

int posix_fallocate64(int fd, off_t from, off_t size)
{
    return allocate("posix_fallocate64", fd, from, size);
}

static int cut_to(const char *real_name, int fd, off_t size)
{
    int (*real)(int, off_t) = dlsym(RTLD_NEXT, real_name);
    if (name_of(fd) && fails()) return -1;
    return real(fd, size);
}

int ftruncate(int fd, off_t size) { return cut_to("ftruncate", fd, size); }
int ftruncate64(int fd, off_t size) { return cut_to("ftruncate64", fd, size); }

static int sync_with(const char *real_name, int fd)
{
    int (*real)(int) = dlsym(RTLD_NEXT, real_name);
    const char *name = name_of(fd);
    if (!name) return real(fd);
    if (state() == 'r') { errno = EROFS; return -1; }
    char kept[256];
    snprintf(kept, sizeof kept, "%s", name);
    struct stat what;
    if (!fstat(fd, &what) && S_ISREG(what.st_mode)) keep(fd, kept);
    return 0; /* the shadow is the disk here: waiting for the real one would add nothing */
}

/* That a file is gone is taken to survive: SQLite syncs the directory after it removed a journal. */
int unlink(const char *path)
{
    int (*real)(const char *) = dlsym(RTLD_NEXT, "unlink");
    const char *under = getenv("DISK_UNDER"), *shadow = getenv("DISK_SHADOW");
    size_t deep = under ? strlen(under) : 0;
    int result = real(path);
    if (!result && shadow && deep && !strncmp(path, under, deep) && path[deep] == '/') {
        char copy[4608];
        snprintf(copy, sizeof copy, "%s/%s", shadow, path + deep + 1);
        real(copy);
    }
    return result;
}

int fsync(int fd) { return sync_with("fsync", fd); }
int fdatasync(int fd) { return sync_with("fdatasync", fd); }

static int told_read_only(const char *path, struct statvfs *found, int result)
{
    const char *under = getenv("DISK_UNDER");
    if (!result && under && !strncmp(path, under, strlen(under)) && state() == 'r')
        found->f_flag |= ST_RDONLY;
    return result;
}

int statvfs(const char *path, struct statvfs *found)
{
    int (*real)(const char *, struct statvfs *) = dlsym(RTLD_NEXT, "statvfs");
    return told_read_only(path, found, real(path, found));
}

int statvfs64(const char *path, struct statvfs64 *found)
{
    int (*real)(const char *, struct statvfs64 *) = dlsym(RTLD_NEXT, "statvfs64");
    return told_read_only(path, (struct statvfs *)found, real(path, found));
}
