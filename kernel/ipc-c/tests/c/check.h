/* Checks that say where and what. A test program ends with the number of those that failed. */
#ifndef CHECK_H
#define CHECK_H

#include <m3ipc.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Long enough for anything that happens at all; long enough to see that something does not. */
#define SOON 10000
#define NEVER_MIND 30

static int faults;

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            __atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST);                  \
        }                                                                      \
    } while (0)

/* A result, by its name when it is an error. */
#define IS(call, expected)                                                     \
    do {                                                                       \
        int is_ = (call), expected_ = (expected);                              \
        if (is_ != expected_) {                                                \
            fprintf(stderr, "%s:%d: %s is %d (%s), not %d (%s)\n", __FILE__, __LINE__, #call, is_, \
                    m3_errname(is_), expected_, m3_errname(expected_));        \
            __atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST);                  \
        }                                                                      \
    } while (0)

static inline m3_port *bound(void)
{
    m3_port *port = NULL;
    int result = m3_connect(NULL, M3_ANY, &port);
    if (result < 0) {
        fprintf(stderr, "cannot bind: %s\n", m3_strerror(result));
        exit(1);
    }
    return port;
}

static inline m3_message typed(int type)
{
    m3_message message;
    memset(&message, 0, sizeof message);
    message.type = type;
    return message;
}

static inline pthread_t begin(void *(*work)(void *), void *with)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, with) != 0)
        abort();
    return thread;
}

static inline void end(pthread_t thread)
{
    if (pthread_join(thread, NULL) != 0)
        abort();
}

/* A child that runs `work`, whose result is its exit status. */
static inline pid_t begin_child(int (*work)(void *), void *with)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        abort();
    if (pid == 0)
        _exit(work(with));
    return pid;
}

/* Its exit status; -1 when it was killed. */
static inline int end_child(pid_t pid)
{
    int status = -1;
    if (waitpid(pid, &status, 0) != pid)
        abort();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#endif
