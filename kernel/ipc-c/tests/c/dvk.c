/* The published names. */
#include "check.h"

#include <m3ipc_dvk.h>

static message of_type(int type)
{
    message made;
    memset(&made, 0, sizeof made);
    made.m_type = type;
    return made;
}

/* Answers requests with m1_i1 + m1_i2 until one of type 0. */
static void *adding(void *with)
{
    int endpoint = dvk_tbind(0, NONE);
    CHECK(endpoint >= M3_FIRST_PROGRAM);
    __atomic_store_n((int *)with, endpoint, __ATOMIC_SEQ_CST);
    for (;;) {
        message m;
        IS(dvk_rcvrqst(&m), OK);
        m.m1_i3 = m.m1_i1 + m.m1_i2;
        IS(m.m_type == 2 ? dvk_reply_T(m.m_source, &m, SOON) : dvk_reply(m.m_source, &m), OK);
        if (m.m_type == 0)
            return NULL; /* the end of the thread is its unbind */
    }
}

static int started(void *(*work)(void *), pthread_t *thread, int *endpoint)
{
    __atomic_store_n(endpoint, 0, __ATOMIC_SEQ_CST);
    *thread = begin(work, endpoint);
    while (__atomic_load_n(endpoint, __ATOMIC_SEQ_CST) == 0)
        usleep(100);
    return *endpoint;
}

static void thread_that_is_not_bound_is_told_so(void)
{
    message m = of_type(1);
    IS(dvk_send(300, &m), EDVSNOTBIND);
    IS(dvk_send_T(300, &m, 0), EDVSNOTBIND);
    IS(dvk_receive(ANY, &m), EDVSNOTBIND);
    IS(dvk_receive_T(ANY, &m, 0), EDVSNOTBIND);
    IS(dvk_sendrec(300, &m), EDVSNOTBIND);
    IS(dvk_sendrec_T(300, &m, 0), EDVSNOTBIND);
    IS(dvk_rcvrqst(&m), EDVSNOTBIND);
    IS(dvk_rcvrqst_T(&m, 0), EDVSNOTBIND);
    IS(dvk_reply(300, &m), EDVSNOTBIND);
    IS(dvk_notify(300), EDVSNOTBIND);
    IS(dvk_getep(getpid()), EDVSNOTBIND);
    IS(dvk_wait4bind_T(NEVER_MIND), EDVSTIMEDOUT);
    IS(dvk_wait4bindep_T(SELF, 0), EDVSTIMEDOUT);
    IS(dvk_wait4bindep(300), EDVSNOTBIND);
    IS(dvk_relay(300, &m), EDVSNOTBIND);
    IS(dvk_src_notify(300, 301), EDVSNOTBIND);
    IS(dvk_ntfy_value(SELF, 301, 1), EDVSNOTBIND);
    IS(dvk_lclbind(0, getpid(), NONE), EDVSNOTBIND);
    IS(dvk_rmtbind(0, "name", NONE, 1), EDVSNOTBIND);
    IS(dvk_wait4unbind(300), EDVSNOTBIND);
    IS(dvk_vcopy(SELF, &m, 300, &m, 1), EDVSNOTBIND);
    IS(dvk_getprocinfo(0, SELF, &(proc_usr_t){ 0 }), EDVSNOTBIND);
    IS(dvk_getdcinfo(0, &(dc_usr_t){ 0 }), EDVSNOTBIND);
    IS(dvk_unbind(0, SELF), EDVSNOTBIND);
    CHECK(dvk_port() == NULL);
}

static void binding_is_the_threads_own(void)
{
    IS(dvk_open(), OK);
    IS(dvk_bind(0, 5000), 5000);
    IS(dvk_bind(0, 5001), EDVSSLOTUSED);
    IS(dvk_wait4bind(), 5000);
    IS(dvk_wait4bindep(SELF), 5000);
    IS(m3_endpoint(dvk_port()), 5000);
    IS(dvk_unbind(0, 5001), EDVSPRIVILEGES);
    IS(dvk_unbind(0, 5000), OK);
    CHECK(dvk_port() == NULL);
    IS(dvk_bind(0, 5000), 5000);
    IS(dvk_unbind(0, SELF), OK);
    IS(dvk_bind(0, 3), EDVSPRIVILEGES);
    IS(dvk_bind(0, 100000), EDVSENDPOINT);
    CHECK(dvk_bind(0, NONE) >= M3_FIRST_PROGRAM);
    IS(dvk_rmtbind(0, "me", NONE, 1), EDVSBADPROC);
    IS(m3_set_name(dvk_port(), "me"), 0);
    int own = dvk_wait4bind();
    IS(dvk_rmtbind(0, "me", own, 1), own);
    IS(dvk_rmtbind(0, "me", NONE, 1), own);
    IS(dvk_rmtbind(0, "me", own + 1, 1), EDVSSLOTUSED);
    IS(dvk_rmtbind(0, "me", own, 2), EDVSBADVALUE);
    IS(dvk_rmtbind(0, "me", 100000, 1), EDVSENDPOINT);
    IS(dvk_rmtbind(0, "m e", own, 1), EDVSBADVALUE);
    IS(dvk_rmtbind(0, NULL, own, 1), EDVSBADVALUE);
    CHECK(dvk_getep(getpid()) >= M3_FIRST_PROGRAM);
    CHECK(dvk_getep(0x7fffffff) < EDVSERRCODE);
}

static void requests_are_answered_by_another_thread(void)
{
    pthread_t thread;
    int server;
    started(adding, &thread, &server);
    IS(dvk_wait4bindep_T(server, SOON), server);
    for (int type = 1; type >= 0; type--) {
        message m = of_type(type);
        m.m1_i1 = 20;
        m.m1_i2 = 22;
        m.m1_p1 = &m;
        IS(type ? dvk_sendrec(server, &m) : dvk_sendrec_T(server, &m, SOON), OK);
        IS(m.m_source, server);
        IS(m.m1_i3, 42);
        CHECK(m.m1_p1 == (void *)&m);
    }
    end(thread);
    IS(dvk_wait4unbind(server), 0);
    IS(dvk_wait4unbind_T(server, SOON), 0);
    IS(dvk_wait4bindep_T(server, NEVER_MIND), EDVSTIMEDOUT);
    IS(dvk_send(server, &(message){ 0 }) < 0, 1);
}

/* Sends a message and a notification to the endpoint it is given. */
static void *telling(void *with)
{
    int to = *(int *)with;
    message m = of_type(9);
    CHECK(dvk_tbind(0, NONE) > 0);
    IS(dvk_notify(to), OK);
    IS(dvk_send(to, &m), OK);
    IS(dvk_send_T(to, &m, SOON), OK);
    IS(dvk_unbind(0, SELF), OK);
    return NULL;
}

static void notifications_come_as_messages(void)
{
    int own = dvk_wait4bind();
    message m;
    IS(dvk_receive_T(ANY, &m, NEVER_MIND), EDVSTIMEDOUT);
    pthread_t thread = begin(telling, &own);
    IS(dvk_receive(ANY, &m), OK);
    int source = m.m_source;
    IS(m.m_type, NOTIFY_FROM(source));
    CHECK(m.m9_v1 == 1 && m.m9_t1.tv_sec > 1600000000 && m.m9_t1.tv_nsec < 1000000000);
    IS(dvk_receive(source, &m), OK);
    IS(m.m_type, 9);
    IS(m.m_source, source);
    IS(dvk_receive_T(ANY, &m, SOON), OK);
    IS(m.m_type, 9);
    end(thread);
    IS(dvk_receive(SELF, &m), EDVSENDPOINT);
    IS(dvk_receive(ANY, NULL), EDVSBADVALUE);
    IS(dvk_send(own, &m), EDVSENDPOINT);
    IS(dvk_send(SELF, &m), EDVSENDPOINT);
}

/* Lends two buffers to the endpoint it is given, and tells their grants. */
struct lent {
    int to;
    char readable[64], writable[64];
};

static void *lending(void *with)
{
    struct lent *lent = with;
    uint64_t from, into;
    message m = of_type(1);
    CHECK(dvk_tbind(0, NONE) > 0);
    IS(m3_grant(dvk_port(), lent->to, lent->readable, sizeof lent->readable, M3_READ, &from), 0);
    IS(m3_grant(dvk_port(), lent->to, lent->writable, sizeof lent->writable, M3_WRITE, &into), 0);
    m.m1_p1 = (void *)(uintptr_t)from;
    m.m1_p2 = (void *)(uintptr_t)into;
    IS(dvk_sendrec(lent->to, &m), OK);
    return NULL;
}

static void copies_go_by_grant(void)
{
    struct lent one = { dvk_wait4bind(), "from one", "" }, other = { one.to, "from the other", "" };
    char own[64] = "from the third";
    message m, n;
    pthread_t first = begin(lending, &one);
    IS(dvk_rcvrqst(&m), OK);
    pthread_t second = begin(lending, &other);
    IS(dvk_rcvrqst_T(&n, SOON), OK);
    IS(dvk_vcopy(SELF, own, m.m_source, m.m1_p2, sizeof own), OK);
    IS(dvk_vcopy(m.m_source, m.m1_p1, one.to, own, sizeof own), OK);
    CHECK(strcmp(own, "from one") == 0);
    IS(dvk_vcopy(m.m_source, m.m1_p1, n.m_source, n.m1_p2, sizeof own), OK);
    IS(dvk_vcopy(m.m_source, m.m1_p2, SELF, own, sizeof own), EDVSACCES);
    IS(dvk_vcopy(m.m_source, m.m1_p1, SELF, own, sizeof own + 1), EDVSRANGE);
    IS(dvk_vcopy(m.m_source, own, SELF, own, 1), EDVSFAULT);
    IS(dvk_vcopy(SELF, own, SELF, own, 1), EDVSENDPOINT);
    IS(dvk_vcopy(m.m_source, m.m1_p1, SELF, own, -1), EDVSBADVALUE);
    IS(dvk_reply(m.m_source, &m), OK);
    IS(dvk_reply(n.m_source, &n), OK);
    IS(dvk_reply(n.m_source, &n) < 0, 1);
    end(first);
    end(second);
    CHECK(strcmp(one.writable, "from the third") == 0);
    CHECK(strcmp(other.writable, "from one") == 0);
}

static void *waking(void *with)
{
    IS(m3_wake(with), 0);
    return NULL;
}

static void waker_ends_a_receive(void)
{
    m3_waker *waker;
    message m;
    IS(m3_waker_open(dvk_port(), &waker), 0);
    pthread_t thread = begin(waking, waker);
    IS(dvk_receive(ANY, &m), EDVSWOKENUP);
    end(thread);
    IS(m3_waker_close(waker), 0);
}

static int in_the_child(void *with)
{
    int parent = *(int *)with;
    message m = of_type(1);
    IS(dvk_send_T(parent, &m, 0), EDVSNOTBIND);
    IS(dvk_wait4bind_T(0), EDVSTIMEDOUT);
    CHECK(dvk_bind(0, NONE) > 0);
    IS(dvk_notify(parent), OK);
    IS(dvk_sendrec(parent, &m), OK); /* what nobody took ends with its sender */
    return faults != 0;
}

static void forked_child_binds_anew(void)
{
    int own = dvk_wait4bind();
    message m;
    pid_t child = begin_child(in_the_child, &own);
    IS(dvk_receive_T(ANY, &m, SOON), OK);
    IS(m.m_type, NOTIFY_FROM(m.m_source));
    CHECK(m.m_source != own);
    IS(dvk_receive_T(m.m_source, &m, SOON), OK);
    IS(dvk_reply(m.m_source, &m), OK);
    IS(end_child(child), 0);
}

static void endpoints_are_told_of(void)
{
    proc_usr_t found;
    dc_usr_t dc;
    pthread_t thread;
    int server, own = m3_endpoint(dvk_port());
    message m = of_type(0);
    unsigned long before;
    IS(dvk_getprocinfo(0, SELF, &found), OK);
    IS(found.p_endpoint, own);
    IS(found.p_vpid, (int)getpid());
    IS(found.p_getfrom, NONE);
    IS((int)found.p_rts_flags, 0);
    before = found.p_lclsent;
    started(adding, &thread, &server);
    IS(dvk_sendrec(server, &m), OK);
    end(thread);
    IS(dvk_getprocinfo(0, own, &found), OK);
    IS((int)(found.p_lclsent - before), 1);
    IS((int)found.p_rmtsent, 0);
    IS(dvk_getprocinfo(0, 7000, &found), EDVSBADPROC);
    IS(dvk_getprocinfo(0, SELF, NULL), EDVSBADVALUE);
    IS(dvk_getdcinfo(0, &dc), OK);
    IS(dc.dc_dcid, found.p_dcid);
    IS(dc.dc_nr_sysprocs, M3_FIRST_PROGRAM);
    IS(dc.dc_nr_procs, M3_ENDPOINTS - M3_FIRST_PROGRAM);
    IS(dc.dc_nr_nodes, 1);
}

int main(void)
{
    thread_that_is_not_bound_is_told_so();
    binding_is_the_threads_own();
    requests_are_answered_by_another_thread();
    notifications_come_as_messages();
    copies_go_by_grant();
    waker_ends_a_receive();
    endpoints_are_told_of();
    forked_child_binds_anew();
    IS(dvk_unbind(0, SELF), OK);
    return faults != 0;
}
