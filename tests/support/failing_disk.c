/* Lets the system calls of one process on one directory fail with EIO, from the moment when a trigger file exists, or
   wait for as long as another one does.

   FAILING_DIRECTORY: absolute path; FAILING_DIRECTORY_TRIGGER and FAILING_DIRECTORY_STALL: paths of the two files,
   outside of that directory. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *directory, *trigger, *stall;

__attribute__((constructor)) static void start(void) {
    directory = getenv("FAILING_DIRECTORY");
    trigger = getenv("FAILING_DIRECTORY_TRIGGER");
    stall = getenv("FAILING_DIRECTORY_STALL");
}

static int is_below(const char *path) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

static int exists(const char *control) { return directory && control && access(control, F_OK) == 0; }

/* Whether a call on the directory fails; when it returns, the stall is over. */
static int fails_now(void) {
    while (exists(stall)) usleep(5000);
    return exists(trigger);
}

static int path_fails(const char *path) {
    return path && (exists(trigger) || exists(stall)) && is_below(path) && fails_now();
}

static int descriptor_fails(int descriptor) {
    char name[64], path[PATH_MAX];
    if (!exists(trigger) && !exists(stall)) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(name, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = '\0';
    return is_below(path) && fails_now();
}

#define FAIL(condition) do { if (condition) { errno = EIO; return -1; } } while (0)
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define ON_DESCRIPTOR(result, name, parameters, arguments) \
    result name parameters {                               \
        FAIL(descriptor_fails(descriptor));                \
        return NEXT(name) arguments;                       \
    }

ON_DESCRIPTOR(ssize_t, write, (int descriptor, const void *data, size_t count), (descriptor, data, count))
ON_DESCRIPTOR(ssize_t, writev, (int descriptor, const struct iovec *data, int count), (descriptor, data, count))
ON_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void *data, size_t count, off_t at), (descriptor, data, count, at))
ON_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void *data, size_t count, off64_t at), (descriptor, data, count, at))
ON_DESCRIPTOR(ssize_t, read, (int descriptor, void *data, size_t count), (descriptor, data, count))
ON_DESCRIPTOR(ssize_t, pread, (int descriptor, void *data, size_t count, off_t at), (descriptor, data, count, at))
ON_DESCRIPTOR(ssize_t, pread64, (int descriptor, void *data, size_t count, off64_t at), (descriptor, data, count, at))
ON_DESCRIPTOR(ssize_t, preadv, (int descriptor, const struct iovec *data, int count, off_t at), (descriptor, data, count, at))
ON_DESCRIPTOR(ssize_t, preadv64, (int descriptor, const struct iovec *data, int count, off64_t at), (descriptor, data, count, at))
ON_DESCRIPTOR(ssize_t, preadv2, (int descriptor, const struct iovec *data, int count, off_t at, int flags), (descriptor, data, count, at, flags))
ON_DESCRIPTOR(ssize_t, preadv64v2, (int descriptor, const struct iovec *data, int count, off64_t at, int flags), (descriptor, data, count, at, flags))
ON_DESCRIPTOR(int, fsync, (int descriptor), (descriptor))
ON_DESCRIPTOR(int, fdatasync, (int descriptor), (descriptor))
ON_DESCRIPTOR(int, ftruncate, (int descriptor, off_t length), (descriptor, length))
ON_DESCRIPTOR(int, ftruncate64, (int descriptor, off64_t length), (descriptor, length))

#define SENDING(name, offset)                                                    \
    ssize_t name(int target, int descriptor, offset *at, size_t count) {         \
        FAIL(descriptor_fails(descriptor));                                      \
        return NEXT(name)(target, descriptor, at, count);                        \
    }

SENDING(sendfile, off_t)
SENDING(sendfile64, off64_t)

#define ON_PATH(name, parameters, arguments) \
    int name parameters {                    \
        FAIL(path_fails(path));              \
        return NEXT(name) arguments;         \
    }

ON_PATH(rename, (const char *path, const char *target), (path, target))
ON_PATH(unlink, (const char *path), (path))
ON_PATH(rmdir, (const char *path), (path))
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode))

#define OPENING(name)                                                            \
    int name(const char *path, int flags, ...) {                                 \
        va_list more;                                                            \
        va_start(more, flags);                                                   \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;  \
        va_end(more);                                                            \
        FAIL(path_fails(path));                                                  \
        return NEXT(name)(path, flags, mode);                                    \
    }

OPENING(open)
OPENING(open64)

DIR *opendir(const char *path) {
    if (path_fails(path)) {
        errno = EIO;
        return NULL;
    }
    return NEXT(opendir)(path);
}
