/* Rings: a server that upper-cases what it gets, a client with many requests in flight. */
#include "check.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>

enum { ENTRIES = 8, SLOT = 4096, REQUESTS = 500 };

static void complete(m3_ring_server *ring, const m3_submission *asked)
{
    size_t bytes = 0;
    unsigned char *arena = m3_ring_server_arena(ring, &bytes);
    m3_completion done;
    memset(&done, 0, sizeof done);
    done.tag = asked->tag;
    done.sequence = asked->sequence;
    done.results[3] = asked->args[2] + 1;
    CHECK(bytes == ENTRIES * SLOT);
    for (uint32_t i = 0; i < asked->out_bytes; i++)
        arena[asked->arena_offset + i] = (unsigned char)toupper(arena[asked->arena_offset + i]);
    done.in_bytes = asked->out_bytes;
    IS(m3_ring_server_complete(ring, &done), 0);
}

/* Serves until the ring is closed. */
static void *serving(void *with)
{
    m3_port *port = with;
    m3_ring_server *ring = NULL;
    uint64_t id = 0;
    for (;;) {
        m3_event event;
        m3_submission asked;
        int next;
        IS(m3_wait(port, &event, SOON), 0);
        if (event.kind == M3_EVENT_RING_OPENED) {
            CHECK(ring == NULL && event.ring != NULL && event.source >= M3_FIRST_PROGRAM);
            ring = event.ring;
            id = event.ring_id;
        } else if (event.kind == M3_EVENT_RING_READY) {
            CHECK(event.ring_id == id);
            while ((next = m3_ring_server_next(ring, &asked)) == 1)
                complete(ring, &asked);
            IS(next, 0);
            IS(m3_ring_server_publish(ring), 0);
        } else if (event.kind == M3_EVENT_RING_CLOSED) {
            CHECK(event.ring_id == id);
            IS(event.error, M3_ESRCDIED);
            IS(m3_ring_server_next(ring, &asked), M3_ESRCDIED);
            IS(m3_ring_server_close(ring), 0);
            IS(m3_ring_server_close(ring), M3_ENOTBOUND);
            return NULL;
        }
    }
}

static m3_submission request(uint32_t number)
{
    m3_submission made;
    memset(&made, 0, sizeof made);
    made.tag = number;
    made.op = 3;
    made.sequence = number;
    made.arena_offset = number % ENTRIES * SLOT;
    made.out_bytes = 5;
    made.in_capacity = 5;
    made.args[2] = number;
    return made;
}

/* Takes what is there. */
static uint32_t take(m3_ring *ring, const char *arena)
{
    m3_completion done;
    uint32_t taken = 0;
    int polled;
    while ((polled = m3_ring_poll(ring, &done)) == 1) {
        CHECK(done.status == 0 && done.in_bytes == 5 && done.results[3] == done.tag + 1 && done.sequence == done.tag);
        CHECK(memcmp(arena + done.tag % ENTRIES * SLOT, "HELLO", 5) == 0);
        taken++;
    }
    IS(polled, 0);
    return taken;
}

static void ring_carries_many_requests(void)
{
    m3_port *server = bound(), *client = bound();
    m3_ring *ring;
    int to = m3_endpoint(server);
    size_t bytes = 0;
    pthread_t thread = begin(serving, server);
    IS(m3_ring_open(client, to, 3, 4096, SOON, &ring), M3_EINVALID);
    IS(m3_ring_open(client, to, ENTRIES, ENTRIES * SLOT, SOON, NULL), M3_EINVALID);
    IS(m3_ring_open(client, to, ENTRIES, ENTRIES * SLOT, SOON, &ring), 0);
    char *arena = m3_ring_arena(ring, &bytes);
    CHECK(arena != NULL && bytes == ENTRIES * SLOT);
    IS(m3_ring_wait(ring, NEVER_MIND), M3_ETIMEDOUT);
    struct pollfd fd = { m3_ring_fd(ring), POLLIN, 0 };
    uint32_t submitted = 0, done = 0;
    while (done < REQUESTS) {
        while (submitted < REQUESTS && submitted - done < ENTRIES) {
            m3_submission next = request(submitted++);
            memcpy(arena + next.arena_offset, "hello", 5);
            IS(m3_ring_submit(ring, &next), 0);
        }
        if (submitted - done == ENTRIES) {
            m3_submission more = request(submitted);
            IS(m3_ring_submit(ring, &more), M3_EBUSY);
        }
        IS(m3_ring_publish(ring), 0);
        if (submitted % 2 == 0) {
            IS(m3_ring_wait(ring, SOON), 0);
        } else if (m3_ring_arm(ring) == 0) {
            IS(poll(&fd, 1, SOON), 1);
            IS(m3_ring_disarm(ring), 0);
        }
        done += take(ring, arena);
    }
    IS(m3_ring_close(ring), 0);
    IS(m3_ring_close(ring), M3_ENOTBOUND);
    IS(m3_ring_publish(ring), M3_ENOTBOUND);
    CHECK(m3_ring_arena(ring, &bytes) == NULL && bytes == 0);
    end(thread);
    m3_close(client);
    m3_close(server);
}

static void wrong_rings_are_refused(void)
{
    m3_submission submission = request(0);
    m3_completion completion;
    size_t bytes = 1;
    IS(m3_ring_submit(NULL, &submission), M3_ENOTBOUND);
    IS(m3_ring_publish(NULL), M3_ENOTBOUND);
    IS(m3_ring_poll(NULL, &completion), M3_ENOTBOUND);
    IS(m3_ring_wait(NULL, 0), M3_ENOTBOUND);
    IS(m3_ring_fd(NULL), M3_ENOTBOUND);
    IS(m3_ring_arm(NULL), M3_ENOTBOUND);
    IS(m3_ring_disarm(NULL), M3_ENOTBOUND);
    IS(m3_ring_close(NULL), M3_ENOTBOUND);
    CHECK(m3_ring_arena(NULL, &bytes) == NULL && bytes == 0);
    IS(m3_ring_server_next(NULL, &submission), M3_ENOTBOUND);
    IS(m3_ring_server_complete(NULL, &completion), M3_ENOTBOUND);
    IS(m3_ring_server_publish(NULL), M3_ENOTBOUND);
    IS(m3_ring_server_close(NULL), M3_ENOTBOUND);
    CHECK(m3_ring_server_arena(NULL, NULL) == NULL);
    m3_port *port = bound();
    m3_ring *ring;
    IS(m3_ring_open(port, 7000, ENTRIES, 0, M3_NOWAIT, &ring), M3_ENOENDPOINT);
    IS(m3_ring_open(port, 7000, ENTRIES, 0, NEVER_MIND, &ring), M3_ETIMEDOUT);
    m3_close(port);
}

struct inherited {
    m3_ring *ring;
    int told[2];
};

static int using_what_it_inherited(void *with)
{
    struct inherited *inherited = with;
    m3_submission intruder = request(99);
    m3_completion done;
    char told;
    if (read(inherited->told[0], &told, 1) != 1)
        return 1;
    IS(m3_ring_submit(inherited->ring, &intruder), M3_ENOTBOUND);
    IS(m3_ring_publish(inherited->ring), M3_ENOTBOUND);
    IS(m3_ring_wait(inherited->ring, NEVER_MIND), M3_ENOTBOUND);
    IS(m3_ring_arm(inherited->ring), M3_ENOTBOUND);
    IS(m3_ring_disarm(inherited->ring), M3_ENOTBOUND);
    IS(m3_ring_poll(inherited->ring, &done), M3_ENOTBOUND);
    return faults != 0;
}

static void forked_child_disturbs_no_ring_of_its_parent(void)
{
    m3_port *server = bound(), *client = bound();
    struct inherited inherited;
    m3_submission own = request(1), asked;
    m3_completion done;
    m3_event event;
    IS(m3_ring_open(client, m3_endpoint(server), ENTRIES, ENTRIES * SLOT, SOON, &inherited.ring), 0);
    CHECK(pipe(inherited.told) == 0);
    pid_t child = begin_child(using_what_it_inherited, &inherited);
    IS(m3_ring_submit(inherited.ring, &own), 0);
    IS(m3_ring_arm(inherited.ring), 0);
    CHECK(write(inherited.told[1], "", 1) == 1);
    IS(end_child(child), 0);
    IS(m3_ring_publish(inherited.ring), 0);
    IS(m3_wait(server, &event, SOON), 0);
    CHECK(event.kind == M3_EVENT_RING_OPENED);
    IS(m3_ring_server_next(event.ring, &asked), 1);
    IS((int)asked.tag, (int)own.tag);
    IS(m3_ring_server_next(event.ring, &asked), 0);
    memset(&done, 0, sizeof done);
    done.tag = own.tag;
    IS(m3_ring_server_complete(event.ring, &done), 0);
    IS(m3_ring_server_publish(event.ring), 0);
    struct pollfd fd = { m3_ring_fd(inherited.ring), POLLIN, 0 };
    IS(poll(&fd, 1, SOON), 1);
    IS(m3_ring_disarm(inherited.ring), 0);
    IS(m3_ring_poll(inherited.ring, &done), 1);
    IS(m3_ring_close(inherited.ring), 0);
    IS(m3_ring_server_close(event.ring), 0);
    close(inherited.told[0]);
    close(inherited.told[1]);
    m3_close(client);
    m3_close(server);
}

static void a_pair_has_as_many_rings_as_the_manual_says(void)
{
    m3_port *server = bound(), *client = bound();
    m3_ring *rings[11], *more;
    const int count = sizeof rings / sizeof *rings, to = m3_endpoint(server);
    for (int i = 0; i < count; i++)
        IS(m3_ring_open(client, to, 1, 0, SOON, &rings[i]), 0);
    IS(m3_ring_open(client, to, 1, 0, SOON, &more), M3_EFULL);
    for (int i = 0; i < count; i++)
        IS(m3_ring_close(rings[i]), 0);
    m3_close(client);
    m3_close(server);
}

int main(void)
{
    ring_carries_many_requests();
    wrong_rings_are_refused();
    forked_child_disturbs_no_ring_of_its_parent();
    a_pair_has_as_many_rings_as_the_manual_says();
    return faults != 0;
}
