/* A server that passes requests on, and a manager that binds another process: the one whose socket is descriptor 0. */
#include "check.h"

#include <m3ipc_dvk.h>

struct call {
    m3_port *port;
    int to;
    int64_t got;
};

/* Asks with some data, and expects it back doubled. */
static void *calling(void *with)
{
    struct call *call = with;
    const void *data;
    m3_message m = typed(7);
    m.payload.i64[0] = 21;
    IS(m3_sendrec_data(call->port, call->to, &m, "data", 5, SOON), 0);
    IS(m.source, call->to);
    IS(m3_data(call->port, &data), 5);
    CHECK(strcmp(data, "DATA") == 0);
    call->got = m.payload.i64[0];
    return NULL;
}

static void target_answers_a_request_that_was_passed_on(m3_port *server, m3_port *client, m3_port *target)
{
    struct call call = { client, m3_endpoint(server), 0 };
    int of = m3_endpoint(client), to = m3_endpoint(target);
    const void *data;
    m3_message m, n = typed(8);
    pthread_t thread = begin(calling, &call);
    IS(m3_rcvrqst(server, &m, SOON), 0);
    IS(m3_relay(server, of, m3_endpoint(server), &m), M3_EENDPOINT);
    IS(m3_relay(server, of, 7000, &m), M3_ENOENDPOINT);
    IS(m3_relay(server, of, to, NULL), M3_EINVALID);
    m.type = 70;
    IS(m3_relay_data(server, of, to, &m, "passed", 7), 0);
    IS(m3_relay(server, of, to, &m), M3_ENOTWAITING);
    IS(m3_reply(server, of, &m), M3_ENOTWAITING);
    IS(m3_rcvrqst(target, &m, SOON), 0);
    IS(m.source, of);
    IS(m.type, 70);
    IS(m3_data(target, &data), 7);
    n.payload.i64[0] = 2 * m.payload.i64[0];
    IS(m3_reply_data(target, of, &n, "DATA", 5), 0);
    IS(m3_receive(server, M3_ANY, &m, 300), M3_ETIMEDOUT); /* the answer goes by */
    end(thread);
    IS((int)call.got, 42);
}

static void server_notifies_in_the_name_of_another(m3_port *server, m3_port *client, m3_port *target)
{
    m3_event event;
    int source = m3_endpoint(client), to = m3_endpoint(target);
    IS(m3_notify_for(server, source, to, 6), 0);
    IS(m3_wait(target, &event, SOON), 0);
    IS(event.kind, M3_EVENT_NOTIFIED);
    IS(event.source, source);
    CHECK(event.mask == 6);
    IS(m3_notify_for(server, to, to, 1), M3_EENDPOINT);
    IS(m3_notify_for(server, -1, to, 1), M3_EENDPOINT);
}

static void program_speaks_for_itself_only(m3_port *program, m3_port *other, m3_port *server)
{
    m3_message m = typed(1);
    int to = m3_endpoint(other);
    IS(m3_relay(program, m3_endpoint(server), to, &m), M3_ENOTWAITING);
    IS(m3_notify_for(program, m3_endpoint(server), to, 1), M3_EDENIED);
    IS(m3_bind_for(program, 1, M3_ANY), M3_EDENIED);
}

static int waits_to_be_bound(void *with)
{
    int manager = *(int *)with;
    m3_port *port;
    message m;
    memset(&m, 0, sizeof m);
    IS(m3_connect_when_bound(NULL, SOON, &port), 0);
    IS(m3_endpoint(port), 700);
    IS(m3_notify(port, manager, 1), 0);
    IS(dvk_wait4bind(), 701);
    IS(dvk_sendrec(manager, &m), OK);
    return faults != 0;
}

static void manager_binds_a_process_that_waits(m3_port *manager)
{
    m3_port *port;
    m3_event event;
    m3_message m;
    int own = m3_endpoint(manager);
    IS(m3_connect_when_bound(NULL, NEVER_MIND, &port), M3_ETIMEDOUT);
    IS(m3_connect_when_bound(NULL, SOON, NULL), M3_EINVALID);
    IS(m3_connect_when_bound("/nonexistent", SOON, &port), M3_ENOBROKER);
    pid_t child = begin_child(waits_to_be_bound, &own);
    IS(m3_bind_for(manager, child, 700), 700);
    IS(m3_bind_for(manager, child + 1, 700), M3_EINUSE);
    IS(m3_bind_for(manager, -1, M3_ANY), M3_EINVALID);
    IS(m3_wait(manager, &event, SOON), 0);
    CHECK(event.kind == M3_EVENT_NOTIFIED && event.source == 700);
    IS(m3_bind_for(manager, child, 701), 701);
    IS(m3_rcvrqst(manager, &m, SOON), 0);
    IS(m.source, 701);
    IS(m3_reply(manager, 701, &m), 0);
    IS(end_child(child), 0);
}

struct successor {
    int endpoint;
    m3_port *port;
};

static void *standing_by(void *with)
{
    struct successor *successor = with;
    IS(m3_stand_by(NULL, successor->endpoint, SOON, &successor->port), 0);
    return NULL;
}

static void endpoint_is_handed_over_and_back(m3_port *manager, m3_port *client)
{
    m3_port *owner = bound(), *none;
    struct successor successor = { m3_endpoint(owner), NULL };
    m3_message m = typed(1);
    int endpoint = successor.endpoint, result;
    uint64_t before, after;
    IS(m3_stand_by(NULL, endpoint, NEVER_MIND, &none), M3_ETIMEDOUT);
    IS(m3_stand_by(NULL, M3_ANY, NEVER_MIND, &none), M3_EENDPOINT);
    IS(m3_stand_by_fd(-1, endpoint, NEVER_MIND, &none), M3_EINVALID);
    IS(m3_migration_start(client, endpoint, SOON), M3_EDENIED);
    IS(m3_migration_commit(owner, endpoint, 1, getpid() + 1, SOON), M3_EINVALID);
    IS(m3_migration_start(owner, endpoint, SOON), 0);
    IS(m3_migration_start(manager, endpoint, SOON), M3_EPENDING);
    IS(m3_receive(owner, M3_ANY, &m, NEVER_MIND), M3_ETIMEDOUT);
    IS(m3_send(client, endpoint, &m, NEVER_MIND), M3_ETIMEDOUT);
    IS(m3_migration_rollback(owner, endpoint), 0);
    IS(m3_migration_start(owner, endpoint, SOON), 0);
    IS(m3_epoch(owner, &before), 0);
    pthread_t thread = begin(standing_by, &successor);
    while ((result = m3_migration_commit(owner, endpoint, 1, getpid(), SOON)) == M3_ENOENDPOINT)
        ;
    IS(result, 0);
    end(thread);
    IS(m3_epoch(successor.port, &after), 0);
    CHECK(after == before + 1);
    IS(m3_receive(owner, M3_ANY, &m, NEVER_MIND), M3_EMOVED);
    IS(m3_close(owner), 0);
    IS(m3_notify(client, endpoint, 4), 0);
    m3_event event;
    IS(m3_wait(successor.port, &event, SOON), 0);
    CHECK(event.kind == M3_EVENT_NOTIFIED && event.mask == 4);
    IS(m3_promote(client, endpoint, 1, getpid(), after + 1), M3_EDENIED);
    IS(m3_promote(manager, endpoint, 1, getpid(), after + 1), M3_ENOENDPOINT);
    IS(m3_close(successor.port), 0);
}

/* Gives the calling thread's binding all calls. */
static void promote(m3_port *manager, int endpoint)
{
    m3_privileges has;
    IS(m3_get_privileges(manager, endpoint, &has), 0);
    has.calls |= M3_CALL_DELEGATE | M3_CALL_MANAGE;
    IS(m3_set_privileges(manager, endpoint, &has), 0);
}

static void *asking(void *with)
{
    int to = *(int *)with;
    message m;
    memset(&m, 0, sizeof m);
    m.m_type = 3;
    CHECK(dvk_tbind(0, NONE) > 0);
    IS(dvk_sendrec_T(to, &m, SOON), OK);
    IS(m.m_source, to);
    IS(m.m1_i1, 9);
    return NULL;
}

static void published_names_do_the_same(m3_port *manager, m3_port *target)
{
    message m;
    m3_message passed;
    m3_event event;
    int own = dvk_bind(0, NONE), to = m3_endpoint(target);
    CHECK(own >= M3_FIRST_PROGRAM);
    IS(dvk_src_notify(m3_endpoint(manager), to), EDVSPRIVILEGES);
    IS(dvk_lclbind(0, 1, NONE), EDVSPRIVILEGES);
    promote(manager, own);
    IS(dvk_lclbind(0, 1, 702), 702);
    IS(dvk_ntfy_value(m3_endpoint(manager), to, 12), OK);
    IS(m3_wait_from(target, m3_endpoint(manager), &event, SOON), 0);
    CHECK(event.kind == M3_EVENT_NOTIFIED && event.mask == 12);
    IS(dvk_src_notify(SELF, to), OK);
    IS(m3_wait_from(target, own, &event, SOON), 0);
    CHECK(event.kind == M3_EVENT_NOTIFIED && event.mask == 1);
    pthread_t thread = begin(asking, &own);
    IS(dvk_rcvrqst(&m), OK);
    IS(dvk_relay(to, NULL), EDVSBADVALUE);
    int client = m.m_source;
    IS(dvk_relay(to, &m), OK);
    IS(m3_rcvrqst(target, &passed, SOON), 0);
    IS(passed.source, client);
    passed.payload.i32[0] = 9;
    IS(m3_reply(target, client, &passed), 0);
    IS(dvk_receive_T(ANY, &m, 300), EDVSTIMEDOUT); /* the answer goes by */
    end(thread);
    IS(dvk_unbind(0, SELF), OK);
}

int main(void)
{
    m3_port *client = bound(), *target = bound(), *server;
    IS(m3_connect_fd(0, M3_ANY, &server), 0);
    IS(m3_endpoint(server), 5);
    target_answers_a_request_that_was_passed_on(server, client, target);
    server_notifies_in_the_name_of_another(server, client, target);
    program_speaks_for_itself_only(client, target, server);
    manager_binds_a_process_that_waits(server);
    published_names_do_the_same(server, target);
    endpoint_is_handed_over_and_back(server, client);
    return faults != 0;
}
