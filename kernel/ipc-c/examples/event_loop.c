/*
 * Waits for messages and for a timer in one poll(2): counts notifications and answers requests until it is asked to end.
 *
 *   cc event_loop.c $(pkg-config --cflags --libs m3ipc) -o event_loop
 */
#include <m3ipc.h>

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

static void check(const char *what, int result)
{
    if (result < 0) {
        fprintf(stderr, "event_loop: %s: %s\n", what, m3_strerror(result));
        exit(1);
    }
}

/* Answers with how many notifications came so far; 1 when asked to end. */
static int answer(m3_port *port, const m3_message *request, int64_t notified)
{
    m3_message reply;
    memset(&reply, 0, sizeof reply);
    reply.payload.i64[0] = notified;
    int result = m3_reply(port, request->source, &reply);
    if (result != M3_ENOTWAITING && result != M3_ESRCDIED && result != M3_EDSTDIED)
        check("cannot reply", result);
    return request->type == 0;
}

/* Takes what there is until nothing is left: only then does the descriptor ring again. */
static int drain(m3_port *port, int64_t *notified)
{
    m3_event event;
    int result;
    while ((result = m3_wait(port, &event, M3_NOWAIT)) == 0) {
        if (event.kind == M3_EVENT_NOTIFIED)
            ++*notified;
        if (event.kind == M3_EVENT_MESSAGE && answer(port, &event.message, *notified))
            return 1;
        if (event.kind == M3_EVENT_RING_OPENED)
            m3_ring_server_close(event.ring);
    }
    if (result != M3_ETIMEDOUT)
        check("cannot wait", result);
    return 0;
}

int main(void)
{
    m3_port *port;
    check("cannot bind", m3_connect(NULL, M3_ANY, &port));
    printf("endpoint %d\n", m3_endpoint(port));
    fflush(stdout);

    struct itimerspec every = { { 1, 0 }, { 1, 0 } };
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (timer < 0 || timerfd_settime(timer, 0, &every, NULL) < 0) {
        perror("event_loop: timer");
        return 1;
    }
    int64_t notified = 0;
    while (!drain(port, &notified)) {
        struct pollfd fds[2] = { { m3_fd(port), POLLIN, 0 }, { timer, POLLIN, 0 } };
        if (poll(fds, 2, -1) < 0)
            continue; /* a signal */
        uint64_t ticks;
        if (fds[1].revents && read(timer, &ticks, sizeof ticks) > 0)
            fprintf(stderr, "%lld notifications\n", (long long)notified);
    }
    close(timer);
    check("cannot unbind", m3_close(port));
    return 0;
}
