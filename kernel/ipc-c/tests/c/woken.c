/* A program that a manager wakes and confines. The manager binds as the server whose socket is descriptor 0. */
#include "check.h"

#include <m3ipc_dvk.h>

static void *waiting(void *with)
{
    m3_message m;
    int result;
    while ((result = m3_receive(with, M3_ANY, &m, SOON)) == M3_EBUSY)
        ; /* the other thread is looking */
    IS(result, M3_EWOKENUP);
    return NULL;
}

static void manager_ends_a_wait(m3_port *manager, m3_port *program)
{
    int endpoint = m3_endpoint(program);
    pthread_t thread = begin(waiting, program);
    while (m3_endpoint(program) != M3_EBUSY)
        ;
    IS(m3_wakeup(manager, endpoint), 0);
    end(thread);
}

static void manager_says_who_may_call_whom(m3_port *manager, m3_port *program, m3_port *other)
{
    m3_privileges had, has;
    m3_message m = typed(1);
    int to = m3_endpoint(other), from = m3_endpoint(program);
    IS(m3_notify(program, to, 1), 0);
    IS(m3_get_privileges(manager, from, &had), 0);
    CHECK((had.calls & M3_CALL_SENDREC) && !(had.calls & M3_CALL_MANAGE));
    IS((int)had.to.count, 1);
    IS(had.to.ranges[0].last, M3_ENDPOINTS - 1);
    has = had;
    has.to.ranges[0].last = M3_FIRST_PROGRAM - 1;
    IS(m3_set_privileges(manager, from, &has), 0);
    IS(m3_notify(program, to, 1), M3_EDENIED);
    IS(m3_send(program, to, &m, NEVER_MIND), M3_EDENIED);
    IS(m3_set_privileges(manager, from, &had), 0);
    IS(m3_notify(program, to, 1), 0);
    IS(m3_send(program, to, &m, NEVER_MIND), M3_ETIMEDOUT);
    has.to.count = M3_PEER_RANGES_MAX + 1;
    IS(m3_set_privileges(manager, from, &has), M3_EINVALID);
    IS(m3_set_privileges(manager, from, NULL), M3_EINVALID);
    IS(m3_get_privileges(manager, from, NULL), M3_EINVALID);
    IS(m3_get_privileges(manager, 7000, &has), M3_ENOENDPOINT);
}

static void program_manages_nobody(m3_port *program, m3_port *other)
{
    m3_privileges has;
    int to = m3_endpoint(other), own = m3_endpoint(program);
    memset(&has, 0, sizeof has);
    IS(m3_wakeup(program, to), M3_EDENIED);
    IS(m3_set_privileges(program, own, &has), M3_EDENIED);
    CHECK(dvk_bind(0, NONE) >= M3_FIRST_PROGRAM);
    IS(dvk_wakeup(0, to), EDVSPRIVILEGES);
    IS(m3_wakeup(NULL, to), M3_ENOTBOUND);
    IS(m3_get_privileges(NULL, to, &has), M3_ENOTBOUND);
    IS(m3_set_privileges(NULL, to, &has), M3_ENOTBOUND);
}

int main(void)
{
    m3_port *program = bound(), *other = bound(), *manager;
    IS(m3_connect_fd(0, M3_ANY, &manager), 0);
    IS(m3_endpoint(manager), 5);
    manager_ends_a_wait(manager, program);
    manager_says_who_may_call_whom(manager, program, other);
    program_manages_nobody(program, other);
    return faults != 0;
}
