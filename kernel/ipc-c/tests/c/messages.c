/* Messages, notifications, binding, waiting: the m3_* calls without grants and rings. */
#include "check.h"

#include <poll.h>
#include <signal.h>

/* One call in another thread, on a port of its own. */
struct call {
    m3_port *port;
    int to;
    m3_message message;
    int timeout_ms;
    int result;
};

static void *sending(void *with)
{
    struct call *call = with;
    call->result = m3_send(call->port, call->to, &call->message, call->timeout_ms);
    return NULL;
}

static void *calling(void *with)
{
    struct call *call = with;
    call->result = m3_sendrec(call->port, call->to, &call->message, call->timeout_ms);
    return NULL;
}

static struct call call_of(m3_port *server, int type)
{
    struct call call = { bound(), m3_endpoint(server), typed(type), SOON, 1 };
    return call;
}

static void request_is_answered(void)
{
    m3_port *server = bound();
    m3_message taken, reply;
    struct call call = call_of(server, 7);
    int caller = m3_endpoint(call.port);
    call.message.source = 4711; /* ignored */
    call.message.payload.u64[6] = 0x0123456789abcdefULL;
    pthread_t thread = begin(calling, &call);
    IS(m3_rcvrqst(server, &taken, SOON), 0);
    IS(taken.source, caller);
    IS(taken.type, 7);
    CHECK(taken.payload.u64[6] == 0x0123456789abcdefULL);
    reply = typed(8);
    strcpy(reply.payload.text, "hello");
    IS(m3_reply(server, caller, &reply), 0);
    end(thread);
    IS(call.result, 0);
    IS(call.message.source, m3_endpoint(server));
    IS(call.message.type, 8);
    CHECK(strcmp(call.message.payload.text, "hello") == 0);
    IS(m3_reply(server, caller, &reply), M3_ENOTWAITING);
    IS(m3_close(call.port), 0);
    IS(m3_reply(server, caller, &reply), M3_ENOTWAITING);
    IS(m3_close(server), 0);
}

static void *calling_with_data(void *with)
{
    struct call *call = with;
    char data[M3_DATA_BYTES_MAX];
    const void *back;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)i;
    call->result = m3_sendrec_data(call->port, call->to, &call->message, data, sizeof data, SOON);
    IS(m3_data(call->port, &back), 3);
    CHECK(memcmp(back, "abc", 3) == 0);
    IS(m3_send_data(call->port, call->to, &call->message, data, 5, SOON), 0);
    return NULL;
}

static void data_travels_with_messages(void)
{
    m3_port *server = bound();
    m3_message taken;
    const void *data;
    char too_long[M3_DATA_BYTES_MAX + 1] = { 0 };
    struct call call = call_of(server, 1);
    pthread_t thread = begin(calling_with_data, &call);
    IS(m3_receive(server, M3_ANY, &taken, SOON), 0);
    IS(m3_data(server, &data), M3_DATA_BYTES_MAX);
    CHECK(((const char *)data)[1000] == (char)1000);
    IS(m3_reply_data(server, taken.source, &taken, too_long, sizeof too_long), M3_EINVALID);
    IS(m3_reply_data(server, taken.source, &taken, NULL, 3), M3_EINVALID);
    IS(m3_reply_data(server, taken.source, &taken, "abc", 3), 0);
    IS(m3_receive(server, taken.source, &taken, SOON), 0);
    IS(m3_data(server, &data), 5);
    end(thread);
    IS(call.result, 0);
    IS(m3_send_data(call.port, call.to, &taken, too_long, sizeof too_long, SOON), M3_EINVALID);
    m3_close(call.port);
    m3_close(server);
}

static void every_wait_ends_at_its_limit(void)
{
    m3_port *server = bound(), *client = bound();
    int to = m3_endpoint(server), own = m3_endpoint(client), limits[] = { M3_NOWAIT, NEVER_MIND };
    for (int i = 0; i < 2; i++) {
        m3_message message = typed(1);
        m3_event event;
        IS(m3_send(client, to, &message, limits[i]), M3_ETIMEDOUT);
        IS(m3_sendrec(client, to, &message, limits[i]), M3_ETIMEDOUT);
        IS(m3_receive(client, M3_ANY, &message, limits[i]), M3_ETIMEDOUT);
        IS(m3_receive(client, to, &message, limits[i]), M3_ETIMEDOUT);
        IS(m3_rcvrqst(client, &message, limits[i]), M3_ETIMEDOUT);
        IS(m3_wait(client, &event, limits[i]), M3_ETIMEDOUT);
        IS(m3_wait_from(client, to, &event, limits[i]), M3_ETIMEDOUT);
        IS(m3_wait4bind(client, own + 100, limits[i]), M3_ETIMEDOUT);
        IS(m3_wait4unbind(client, to, limits[i]), M3_ETIMEDOUT);
    }
    m3_close(client);
    m3_close(server);
}

static void higher_endpoint_gives_way(void)
{
    m3_port *one = bound(), *two = bound();
    int is_low = m3_endpoint(one) < m3_endpoint(two);
    m3_port *low = is_low ? one : two, *high = is_low ? two : one;
    struct call call = { low, m3_endpoint(high), typed(1), M3_FOREVER, 1 };
    m3_message message = typed(2);
    int to = m3_endpoint(low);
    pthread_t thread = begin(sending, &call);
    IS(m3_send(high, to, &message, M3_FOREVER), M3_EDEADLOCK);
    IS(m3_receive(high, M3_ANY, &message, SOON), 0);
    IS(message.type, 1);
    end(thread);
    IS(call.result, 0);
    m3_close(one);
    m3_close(two);
}

static void notifications_merge_and_come_first(void)
{
    m3_port *server = bound(), *other = bound();
    m3_event event;
    struct call call = call_of(server, 5);
    int from = m3_endpoint(call.port), to = m3_endpoint(server);
    IS(m3_notify(call.port, to, 1), 0);
    IS(m3_notify(call.port, to, 6), 0);
    IS(m3_notify(other, to, UINT64_C(1) << 63), 0);
    IS(m3_wait_from(server, from, &event, SOON), 0);
    IS(event.kind, M3_EVENT_NOTIFIED);
    IS(event.source, from);
    CHECK(event.mask == 7);
    IS(m3_wait_from(server, from, &event, NEVER_MIND), M3_ETIMEDOUT);
    pthread_t thread = begin(sending, &call);
    IS(m3_wait_from(server, from, &event, SOON), 0);
    IS(event.kind, M3_EVENT_MESSAGE);
    IS(event.message.type, 5);
    IS(event.message.source, from);
    end(thread);
    IS(m3_wait(server, &event, SOON), 0);
    IS(event.kind, M3_EVENT_NOTIFIED);
    IS(event.source, m3_endpoint(other));
    CHECK(event.mask == UINT64_C(1) << 63);
    m3_close(call.port);
    m3_close(other);
    m3_close(server);
}

static void descriptor_rings_for_messages_and_notifications(void)
{
    m3_port *server = bound();
    struct pollfd fd = { m3_fd(server), POLLIN, 0 };
    m3_event event;
    struct call call = call_of(server, 1);
    CHECK(fd.fd >= 0);
    for (int round = 0; round < 50; round++) {
        IS(m3_wait(server, &event, M3_NOWAIT), M3_ETIMEDOUT);
        IS(poll(&fd, 1, round == 0 ? NEVER_MIND : 0), 0);
        pthread_t thread = begin(calling, &call);
        IS(poll(&fd, 1, SOON), 1);
        int requests = 0;
        while (requests < 1) {
            int result = m3_wait(server, &event, M3_NOWAIT);
            if (result == M3_ETIMEDOUT) {
                IS(poll(&fd, 1, SOON), 1);
                continue;
            }
            IS(result, 0);
            if (event.kind == M3_EVENT_MESSAGE) {
                requests++;
                IS(m3_reply(server, event.source, &event.message), 0);
            }
        }
        end(thread);
        IS(call.result, 0);
        while (m3_wait(server, &event, M3_NOWAIT) == 0)
            ;
    }
    m3_close(call.port);
    m3_close(server);
}

static void *waking(void *with)
{
    IS(m3_wake(with), 0);
    return NULL;
}

static void waker_ends_a_wait_and_outlives_the_port(void)
{
    m3_port *port = bound();
    m3_waker *waker;
    m3_event event;
    struct pollfd fd = { m3_fd(port), POLLIN, 0 };
    IS(m3_waker_open(port, &waker), 0);
    pthread_t thread = begin(waking, waker);
    IS(m3_wait(port, &event, SOON), 0);
    IS(event.kind, M3_EVENT_WOKEN);
    end(thread);
    IS(m3_wait(port, &event, M3_NOWAIT), M3_ETIMEDOUT);
    IS(m3_wake(waker), 0);
    IS(poll(&fd, 1, SOON), 1);
    IS(m3_wait(port, &event, M3_NOWAIT), 0);
    IS(event.kind, M3_EVENT_WOKEN);
    IS(m3_close(port), 0);
    IS(m3_wake(waker), 0);
    IS(m3_waker_close(waker), 0);
    IS(m3_wake(waker), M3_ENOTBOUND);
    IS(m3_waker_close(waker), M3_ENOTBOUND);
}

/* A result that nobody looked at is told by the next call, not by a crash. */
static void who_gets_nothing_has_no_handle(void)
{
    char elsewhere;
    m3_port *port = (m3_port *)&elsewhere;
    m3_ring *ring = (m3_ring *)&elsewhere;
    m3_waker *waker = (m3_waker *)&elsewhere;
    m3_message message = { 0 };
    IS(m3_connect("/nonexistent/broker", M3_ANY, &port), M3_ENOBROKER);
    CHECK(port == NULL);
    IS(m3_sendrec(port, 256, &message, 0), M3_ENOTBOUND);
    port = (m3_port *)&elsewhere;
    IS(m3_connect(NULL, -2, &port), M3_EENDPOINT);
    CHECK(port == NULL);
    IS(m3_ring_open(port, 256, 8, 4096, 0, &ring), M3_ENOTBOUND);
    IS(m3_waker_open(port, &waker), M3_ENOTBOUND);
    CHECK(ring == NULL && waker == NULL);
}

static void numbers_are_bound_once_and_found(void)
{
    m3_port *first = NULL, *second = NULL, *third = bound();
    uint64_t before = 0, after = 0;
    IS(m3_connect(NULL, 4000, &first), 0);
    IS(m3_endpoint(first), 4000);
    IS(m3_epoch(first, &before), 0);
    IS(m3_connect(NULL, 4000, &second), M3_EINUSE);
    IS(m3_connect(NULL, 1, &second), M3_EDENIED);
    IS(m3_connect(NULL, M3_ENDPOINTS, &second), M3_EENDPOINT);
    IS(m3_connect(NULL, -2, &second), M3_EENDPOINT);
    IS(m3_connect("/nonexistent/broker", M3_ANY, &second), M3_ENOBROKER);
    IS(m3_connect_fd(-1, M3_ANY, &second), M3_EINVALID);
    CHECK(second == NULL);
    CHECK(m3_getep(third, getpid()) >= M3_FIRST_PROGRAM);
    IS(m3_getep(third, 0x7fffffff), M3_ENOENDPOINT);
    IS(m3_wait4bind(third, 4000, SOON), 0);
    IS(m3_close(first), 0);
    IS(m3_wait4unbind(third, 4000, SOON), 0);
    IS(m3_connect(NULL, 4000, &first), 0);
    IS(m3_epoch(first, &after), 0);
    CHECK(after > before);
    m3_close(first);
    m3_close(third);
}

static void *seeking(void *with)
{
    m3_port *port = bound();
    *(int *)with = m3_find(port, "front-end", SOON);
    m3_close(port);
    return NULL;
}

static void endpoints_are_found_by_their_names(void)
{
    m3_port *port = bound(), *other = bound();
    int own = m3_endpoint(port), found = 0;
    char longest[M3_NAME_BYTES_MAX + 2];
    memset(longest, 'x', sizeof longest - 1);
    longest[M3_NAME_BYTES_MAX + 1] = 0;
    IS(m3_set_name(other, longest), M3_EINVALID);
    IS(m3_find(other, longest, SOON), M3_EINVALID);
    longest[M3_NAME_BYTES_MAX] = 0;
    IS(m3_set_name(other, longest), 0);
    IS(m3_find(port, longest, SOON), m3_endpoint(other));
    IS(m3_find(port, "front-end", 0), M3_ENOENDPOINT);
    IS(m3_find(port, "front-end", NEVER_MIND), M3_ETIMEDOUT);
    pthread_t thread = begin(seeking, &found);
    IS(m3_set_name(port, "front-end"), 0);
    end(thread);
    IS(found, own);
    IS(m3_set_name(port, "front-end"), 0);
    IS(m3_set_name(port, "second"), M3_EFULL);
    m3_port *third = bound();
    IS(m3_set_name(third, "front-end"), M3_EINUSE);
    IS(m3_set_name(third, "a b"), M3_EINVALID);
    IS(m3_set_name(third, ""), M3_EINVALID);
    IS(m3_set_name(third, NULL), M3_EINVALID);
    IS(m3_find(third, NULL, 0), M3_EINVALID);
    IS(m3_find(third, "\xff", 0), M3_EINVALID);
    IS(m3_close(port), 0);
    IS(m3_set_name(third, "front-end"), 0);
    IS(m3_find(other, "front-end", SOON), m3_endpoint(third));
    m3_close(other);
    m3_close(third);
}

static void wrong_arguments_are_refused(void)
{
    m3_port *port = bound(), *closed = bound(), *none = NULL;
    m3_message message = typed(1);
    m3_event event;
    int own = m3_endpoint(port);
    IS(m3_close(closed), 0);
    m3_port *bad[] = { none, closed };
    for (int i = 0; i < 2; i++) {
        uint64_t number;
        const void *data;
        m3_waker *waker;
        m3_ring *ring;
        m3_place place = { 300, 0, 1, 0 };
        IS(m3_endpoint(bad[i]), M3_ENOTBOUND);
        IS(m3_epoch(bad[i], &number), M3_ENOTBOUND);
        IS(m3_fd(bad[i]), M3_ENOTBOUND);
        IS(m3_set_wait_mode(bad[i], M3_WAIT_PARK), M3_ENOTBOUND);
        IS(m3_getep(bad[i], 1), M3_ENOTBOUND);
        IS(m3_wait4bind(bad[i], 300, 0), M3_ENOTBOUND);
        IS(m3_wait4unbind(bad[i], 300, 0), M3_ENOTBOUND);
        IS(m3_set_name(bad[i], "name"), M3_ENOTBOUND);
        IS(m3_find(bad[i], "name", 0), M3_ENOTBOUND);
        IS(m3_send(bad[i], 300, &message, 0), M3_ENOTBOUND);
        IS(m3_sendrec(bad[i], 300, &message, 0), M3_ENOTBOUND);
        IS(m3_receive(bad[i], M3_ANY, &message, 0), M3_ENOTBOUND);
        IS(m3_rcvrqst(bad[i], &message, 0), M3_ENOTBOUND);
        IS(m3_reply(bad[i], 300, &message), M3_ENOTBOUND);
        IS(m3_notify(bad[i], 300, 1), M3_ENOTBOUND);
        IS(m3_data(bad[i], &data), M3_ENOTBOUND);
        IS(m3_wait(bad[i], &event, 0), M3_ENOTBOUND);
        IS(m3_wait_from(bad[i], 300, &event, 0), M3_ENOTBOUND);
        IS(m3_waker_open(bad[i], &waker), M3_ENOTBOUND);
        IS(m3_grant(bad[i], 300, &message, 1, M3_READ, &number), M3_ENOTBOUND);
        IS(m3_revoke(bad[i], 1), M3_ENOTBOUND);
        IS(m3_copy_from(bad[i], &place, &message, 1, 0), M3_ENOTBOUND);
        IS(m3_copy_to(bad[i], &message, 1, &place, 0), M3_ENOTBOUND);
        IS(m3_vcopy(bad[i], &place, &place, 1, 0), M3_ENOTBOUND);
        IS(m3_ring_open(bad[i], 300, 8, 4096, 0, &ring), M3_ENOTBOUND);
        IS(m3_close(bad[i]), M3_ENOTBOUND);
    }
    IS(m3_connect(NULL, M3_ANY, NULL), M3_EINVALID);
    IS(m3_epoch(port, NULL), M3_EINVALID);
    IS(m3_send(port, 300, NULL, 0), M3_EINVALID);
    IS(m3_sendrec(port, 300, NULL, 0), M3_EINVALID);
    IS(m3_receive(port, M3_ANY, NULL, 0), M3_EINVALID);
    IS(m3_rcvrqst(port, NULL, 0), M3_EINVALID);
    IS(m3_reply(port, 300, NULL), M3_EINVALID);
    IS(m3_data(port, NULL), M3_EINVALID);
    IS(m3_wait(port, NULL, 0), M3_EINVALID);
    IS(m3_wait_from(port, 300, NULL, 0), M3_EINVALID);
    IS(m3_waker_open(port, NULL), M3_EINVALID);
    IS(m3_wake(NULL), M3_ENOTBOUND);
    IS(m3_waker_close(NULL), M3_ENOTBOUND);
    IS(m3_set_wait_mode(port, 3), M3_EINVALID);
    IS(m3_send(port, own, &message, 0), M3_EENDPOINT);
    IS(m3_send(port, M3_ANY, &message, 0), M3_EENDPOINT);
    IS(m3_send(port, M3_ENDPOINTS, &message, 0), M3_EENDPOINT);
    IS(m3_send(port, 7000, &message, 0), M3_ENOENDPOINT);
    IS(m3_receive(port, -2, &message, 0), M3_EENDPOINT);
    IS(m3_wait_from(port, M3_ANY, &event, 0), M3_EENDPOINT);
    IS(m3_notify(port, -7, 1), M3_EENDPOINT);
    IS(m3_set_wait_mode(port, M3_WAIT_SPIN), 0);
    IS(m3_set_wait_mode(port, M3_WAIT_PARK), 0);
    IS(m3_set_wait_mode(port, M3_WAIT_ADAPTIVE), 0);
    m3_close(port);
}

static void *waiting_a_while(void *with)
{
    m3_event event;
    int result;
    while ((result = m3_wait(with, &event, SOON)) == M3_EBUSY)
        ; /* the other thread is looking */
    IS(result, 0);
    IS(event.kind, M3_EVENT_WOKEN);
    return NULL;
}

static void port_is_one_threads_at_a_time(void)
{
    m3_port *port = bound();
    m3_waker *waker;
    m3_event event;
    IS(m3_waker_open(port, &waker), 0);
    pthread_t thread = begin(waiting_a_while, port);
    while (m3_endpoint(port) != M3_EBUSY)
        ;
    IS(m3_wait(port, &event, 0), M3_EBUSY);
    IS(m3_close(port), M3_EBUSY);
    IS(m3_wake(waker), 0);
    end(thread);
    m3_waker_close(waker);
    IS(m3_close(port), 0);
}

static int child_of_a_bound_process(void *with)
{
    m3_message message = typed(1);
    m3_port *inherited = ((void **)with)[0], *fresh;
    int server = *((int **)with)[1];
    IS(m3_send(inherited, server, &message, SOON), M3_ENOTBOUND);
    IS(m3_notify(inherited, server, 1), M3_ENOTBOUND);
    IS(m3_receive(inherited, M3_ANY, &message, SOON), M3_ENOTBOUND);
    IS(m3_close(inherited), 0);
    IS(m3_connect(NULL, M3_ANY, &fresh), 0);
    IS(m3_sendrec(fresh, server, &message, SOON), 0);
    IS(m3_close(fresh), 0);
    return faults != 0;
}

static void forked_child_has_no_endpoint_but_may_have_its_own(void)
{
    m3_port *parent = bound(), *server = bound();
    int to = m3_endpoint(server);
    m3_message request;
    m3_event event;
    void *with[] = { parent, &to };
    pid_t child = begin_child(child_of_a_bound_process, with);
    IS(m3_rcvrqst(server, &request, SOON), 0);
    CHECK(request.source != m3_endpoint(parent));
    IS(m3_reply(server, request.source, &request), 0);
    IS(end_child(child), 0);
    IS(m3_notify(parent, to, 1), 0);
    IS(m3_wait(server, &event, SOON), 0);
    CHECK(event.kind == M3_EVENT_NOTIFIED && event.source == m3_endpoint(parent));
    m3_close(parent);
    m3_close(server);
}

/* Binds, tells its number, takes a request if it is to, and waits. */
struct victim {
    int takes_a_request;
    int told[2];
};

static int dying(void *with)
{
    struct victim *victim = with;
    m3_message taken;
    m3_port *port = bound();
    int own = m3_endpoint(port);
    if (write(victim->told[1], &own, sizeof own) != sizeof own)
        return 1;
    if (victim->takes_a_request && m3_rcvrqst(port, &taken, SOON) == 0 && write(victim->told[1], &own, sizeof own) < 0)
        return 1;
    for (;;)
        pause();
}

static int told(const struct victim *victim)
{
    int endpoint = 0;
    IS((int)read(victim->told[0], &endpoint, sizeof endpoint), (int)sizeof endpoint);
    return endpoint;
}

static void death_of_the_peer_is_told(void)
{
    struct call call = { bound(), 0, typed(1), M3_FOREVER, 1 };
    struct victim victim;
    CHECK(pipe(victim.told) == 0);
    for (victim.takes_a_request = 0; victim.takes_a_request < 2; victim.takes_a_request++) {
        pid_t pid = begin_child(dying, &victim);
        call.to = told(&victim);
        IS(m3_notify(call.port, call.to, 1), 0); /* there is a channel */
        pthread_t thread = begin(victim.takes_a_request ? calling : sending, &call);
        if (victim.takes_a_request)
            told(&victim);
        kill(pid, SIGKILL);
        end(thread);
        /* Killed before the call began, it is simply not there. */
        if (victim.takes_a_request || call.result != M3_ENOENDPOINT)
            IS(call.result, victim.takes_a_request ? M3_ESRCDIED : M3_EDSTDIED);
        IS(end_child(pid), -1);
    }
    close(victim.told[0]);
    close(victim.told[1]);
    m3_close(call.port);
}

static void *one_of_many(void *with)
{
    m3_port *own = bound();
    for (int number = 1; number <= 200; number++) {
        m3_message message = typed(number);
        IS(m3_sendrec(own, *(int *)with, &message, SOON), 0);
        IS(message.type, -number);
    }
    m3_close(own);
    return NULL;
}

static void each_thread_has_an_endpoint_of_its_own(void)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    m3_port *server = bound();
    int to = m3_endpoint(server);
    for (int i = 0; i < THREADS; i++)
        threads[i] = begin(one_of_many, &to);
    for (int i = 0; i < THREADS * 200; i++) {
        m3_message request;
        IS(m3_rcvrqst(server, &request, SOON), 0);
        request.type = -request.type;
        IS(m3_reply(server, request.source, &request), 0);
    }
    for (int i = 0; i < THREADS; i++)
        end(threads[i]);
    m3_close(server);
}

static void on_alarm(int number)
{
    (void)number;
}

/* Handlers run in the middle of every call; none ends for it. */
static void signals_end_no_call(void)
{
    m3_port *server = bound();
    int to = m3_endpoint(server);
    m3_message message;
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    ualarm(500, 500);
    IS(m3_receive(server, M3_ANY, &message, 50), M3_ETIMEDOUT);
    pthread_t thread = begin(one_of_many, &to);
    for (int i = 0; i < 200; i++) {
        if (i % 20 == 0)
            usleep(2000); /* both sleep */
        IS(m3_rcvrqst(server, &message, SOON), 0);
        message.type = -message.type;
        IS(m3_reply(server, message.source, &message), 0);
    }
    end(thread);
    ualarm(0, 0);
    m3_close(server);
}

static void errors_have_names_and_texts(void)
{
    CHECK(strcmp(m3_errname(M3_ETIMEDOUT), "M3_ETIMEDOUT") == 0);
    CHECK(strcmp(m3_strerror(M3_ETIMEDOUT), "the time limit passed") == 0);
    CHECK(strcmp(m3_errname(-5), "M3_EUNKNOWN") == 0);
    CHECK(strstr(m3_strerror(-1013), "Permission denied") != NULL);
    CHECK(M3_IS_OS_ERROR(-1013) && M3_OS_ERRNO(-1013) == 13 && !M3_IS_OS_ERROR(M3_ELIBRARY));
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", M3_VERSION_MAJOR, M3_VERSION_MINOR, M3_VERSION_PATCH);
    CHECK(strcmp(m3_version(), version) == 0);
}

int main(void)
{
    request_is_answered();
    data_travels_with_messages();
    every_wait_ends_at_its_limit();
    higher_endpoint_gives_way();
    notifications_merge_and_come_first();
    descriptor_rings_for_messages_and_notifications();
    waker_ends_a_wait_and_outlives_the_port();
    who_gets_nothing_has_no_handle();
    numbers_are_bound_once_and_found();
    endpoints_are_found_by_their_names();
    wrong_arguments_are_refused();
    port_is_one_threads_at_a_time();
    forked_child_has_no_endpoint_but_may_have_its_own();
    death_of_the_peer_is_told();
    each_thread_has_an_endpoint_of_its_own();
    signals_end_no_call();
    errors_have_names_and_texts();
    return faults != 0;
}
