/*
 * The published names of M3-IPC: dvk_*, the message with its unions, magic
 * endpoints and error numbers. See dvk(3) for what is offered and what is not.
 *
 * Each thread has one binding of its own, made by dvk_bind() or dvk_tbind().
 * What m3ipc.h offers beyond these names works on it too: dvk_port().
 */
#ifndef M3IPC_DVK_H
#define M3IPC_DVK_H

#include "m3ipc.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef OK
#define OK 0
#endif

/* Endpoints that name nobody in particular. */
#define ANY  0x7ace /* of a receive: whoever comes first */
#define NONE 0x6ace /* of a bind: a number that the broker chooses */
#define SELF 0x8ace /* the caller's own */

/* Time limits are milliseconds. */
#define TIMEOUT_NOWAIT  0
#define TIMEOUT_FOREVER (-1)

/* A result below this, of a call that returns an endpoint, is an error. */
#define EDVSERRCODE (-300)

#define EDVSACCES      M3_EACCESS
#define EDVSFAULT      M3_EGRANT
#define EDVSBUSY       M3_EBUSY
#define EDVSRANGE      M3_ERANGE
#define EDVSCONNRESET  M3_ECORRUPT
#define EDVSTIMEDOUT   M3_ETIMEDOUT
#define EDVSLOCKED     M3_EDEADLOCK
#define EDVSSRCDIED    M3_ESRCDIED
#define EDVSDSTDIED    M3_EDSTDIED
#define EDVSDCNOTRUN   M3_ENOTRUNNING
#define EDVSBADPROC    M3_ENOENDPOINT
#define EDVSENDPOINT   M3_EENDPOINT
#define EDVSNOPROXY    M3_ENOLINK
#define EDVSNOTBIND    M3_ENOTBOUND
#define EDVSDVSBUSY    M3_EPENDING
#define EDVSDVSINIT    M3_ENOBROKER
#define EDVSPROCSTS    M3_ENOTWAITING
#define EDVSBADOWNER   M3_EREVOKED
#define EDVSMIGRATE    M3_EMOVED
#define EDVSPRIVILEGES M3_EDENIED
#define EDVSSLOTUSED   M3_EINUSE
#define EDVSBADRANGE   M3_EFULL
#define EDVSBADVALUE   M3_EINVALID
#define EDVSWOKENUP    M3_EWOKENUP
#define EDVSPRIMARY    M3_EFENCED

/* The message: 64 bytes, whatever the width of a pointer. A pointer that
 * travels is a number to its receiver. */
#define M3_STRING 16
#define SLOTS_BY_MSG 4

typedef struct { int32_t m1i1, m1i2, m1i3, m1pad; void *m1p1, *m1p2, *m1p3; } mess_1;
typedef struct { int32_t m2i1, m2i2, m2i3, m2pad; int64_t m2l1, m2l2; void *m2p1; } mess_2;
typedef struct { int32_t m3i1, m3i2; void *m3p1; char m3ca1[M3_STRING]; } mess_3;
typedef struct { int64_t m4l1, m4l2, m4l3, m4l4, m4l5; } mess_4;
typedef struct { int16_t m5c1, m5c2; int32_t m5i1, m5i2, m5pad; int64_t m5l1, m5l2, m5l3; } mess_5;
typedef struct { char m6ca1[sizeof(mess_3)]; } mess_6;
typedef struct { int32_t m7i1, m7i2, m7i3, m7i4; void *m7p1, *m7p2; } mess_7;
typedef struct { int32_t m8i1, m8i2; void *m8p1, *m8p2, *m8p3, *m8p4; } mess_8;
/* A notification: when it was taken, and the bits that were set. */
typedef struct { int32_t m9i1, m9l1; struct { int64_t tv_sec, tv_nsec; } m9t1; uint64_t m9v1; } mess_9;
typedef struct { int32_t mAdst, mAnr, mAia[SLOTS_BY_MSG]; } mess_A;
typedef struct { int64_t mBl1; unsigned char mBmd5[16]; } mess_B;
typedef struct { int32_t mCi1, mCi2, mCi3, mCi4; char mCca1[40]; } mess_C;

typedef struct {
    int32_t m_source;
    int32_t m_type;
    union {
        mess_1 m_m1;
        mess_2 m_m2;
        mess_3 m_m3;
        mess_4 m_m4;
        mess_5 m_m5;
        mess_6 m_m6;
        mess_7 m_m7;
        mess_8 m_m8;
        mess_9 m_m9;
        mess_A m_mA;
        mess_B m_mB;
        mess_C m_mC;
        uint64_t m_words[7];
    } m_u;
} message;

#define m1_i1 m_u.m_m1.m1i1
#define m1_i2 m_u.m_m1.m1i2
#define m1_i3 m_u.m_m1.m1i3
#define m1_p1 m_u.m_m1.m1p1
#define m1_p2 m_u.m_m1.m1p2
#define m1_p3 m_u.m_m1.m1p3
#define m2_i1 m_u.m_m2.m2i1
#define m2_i2 m_u.m_m2.m2i2
#define m2_i3 m_u.m_m2.m2i3
#define m2_l1 m_u.m_m2.m2l1
#define m2_l2 m_u.m_m2.m2l2
#define m2_p1 m_u.m_m2.m2p1
#define m3_i1 m_u.m_m3.m3i1
#define m3_i2 m_u.m_m3.m3i2
#define m3_p1 m_u.m_m3.m3p1
#define m3_ca1 m_u.m_m3.m3ca1
#define m4_l1 m_u.m_m4.m4l1
#define m4_l2 m_u.m_m4.m4l2
#define m4_l3 m_u.m_m4.m4l3
#define m4_l4 m_u.m_m4.m4l4
#define m4_l5 m_u.m_m4.m4l5
#define m5_c1 m_u.m_m5.m5c1
#define m5_c2 m_u.m_m5.m5c2
#define m5_i1 m_u.m_m5.m5i1
#define m5_i2 m_u.m_m5.m5i2
#define m5_l1 m_u.m_m5.m5l1
#define m5_l2 m_u.m_m5.m5l2
#define m5_l3 m_u.m_m5.m5l3
#define m6_ca1 m_u.m_m6.m6ca1
#define m7_i1 m_u.m_m7.m7i1
#define m7_i2 m_u.m_m7.m7i2
#define m7_i3 m_u.m_m7.m7i3
#define m7_i4 m_u.m_m7.m7i4
#define m7_p1 m_u.m_m7.m7p1
#define m7_p2 m_u.m_m7.m7p2
#define m8_i1 m_u.m_m8.m8i1
#define m8_i2 m_u.m_m8.m8i2
#define m8_p1 m_u.m_m8.m8p1
#define m8_p2 m_u.m_m8.m8p2
#define m8_p3 m_u.m_m8.m8p3
#define m8_p4 m_u.m_m8.m8p4
#define m9_i1 m_u.m_m9.m9i1
#define m9_l1 m_u.m_m9.m9l1
#define m9_t1 m_u.m_m9.m9t1
#define m9_v1 m_u.m_m9.m9v1
#define mA_dst m_u.m_mA.mAdst
#define mA_nr m_u.m_mA.mAnr
#define mA_ia m_u.m_mA.mAia
#define mB_l1 m_u.m_mB.mBl1
#define mB_md5 m_u.m_mB.mBmd5
#define mC_i1 m_u.m_mC.mCi1
#define mC_i2 m_u.m_mC.mCi2
#define mC_i3 m_u.m_mC.mCi3
#define mC_i4 m_u.m_mC.mCi4
#define mC_ca1 m_u.m_mC.mCca1

/* What is known of an endpoint: the published members for which there is
 * something to say. */
#define BIT_RECEIVING 3
#define BIT_MIGRATE   11
#define BIT_REMOTE    12

typedef struct proc_usr {
    int p_nr;
    int p_endpoint;
    int p_dcid;
    int p_vpid;                /* in the container; 0 when it is not known */
    unsigned long p_rts_flags; /* the bits above */
    int p_nodeid;
    int p_getfrom;             /* for whom it waits, or NONE */
    unsigned long p_lclsent;   /* messages within the node */
    unsigned long p_rmtsent;   /* and to other nodes */
    unsigned long p_lclcopy;   /* copies it asked for, likewise */
    unsigned long p_rmtcopy;
} proc_usr_t;

typedef struct dc_usr {
    int dc_dcid;
    int dc_flags;       /* 0: it runs */
    int dc_nr_procs;    /* numbers of programs */
    int dc_nr_tasks;    /* 0 */
    int dc_nr_sysprocs; /* numbers of servers */
    int dc_nr_nodes;    /* on which endpoints are known */
} dc_usr_t;

/* The type of a notification that was received, by its source. */
#define NOTIFY_MESSAGE 0x10000
#define NOTIFY_FROM(endpoint) (NOTIFY_MESSAGE | (endpoint))

/* Whether there is a broker to talk to. Needs not be called. */
int dvk_open(void);

/* Binds the calling thread; returns its endpoint. `dcid` is not looked at: a
 * program binds in the container it runs in. `p_nr` may be NONE. */
int dvk_bind(int dcid, int p_nr);
int dvk_tbind(int dcid, int p_nr);
/* Of a manager: binds another process of this node, which has the endpoint
 * when it binds or waits for it by dvk_wait4bind(). */
int dvk_lclbind(int dcid, int pid, int p_nr);
/* Whether `ep`, or anybody when that is NONE, is called `name` and is on the
 * node `nodeid`; returns the endpoint. See m3_set_name(). */
int dvk_rmtbind(int dcid, const char *name, int ep, int nodeid);
/* Of the owner or a manager: hold an endpoint, hand it over, let it go on. The
 * process `pid` of `newnode` stands by for it: m3_stand_by(). */
int dvk_migr_start(int dcid, int ep);
int dvk_migr_commit(int pid, int dcid, int ep, int newnode);
int dvk_migr_rollback(int dcid, int ep);
/* `p_ep` is the caller's own, or SELF. Implied by the end of the thread. */
int dvk_unbind(int dcid, int p_ep);

/* The calling thread's port, for the calls of m3ipc.h; NULL when it is not
 * bound. Not to be closed. */
m3_port *dvk_port(void);

int dvk_send(int dst, const message *m);
int dvk_send_T(int dst, const message *m, int timeout_ms);
/* Notifications come as messages with type NOTIFY_FROM(source) and m9. */
int dvk_receive(int src, message *m);
int dvk_receive_T(int src, message *m, int timeout_ms);
int dvk_sendrec(int dst, message *m);
int dvk_sendrec_T(int dst, message *m, int timeout_ms);
int dvk_rcvrqst(message *m);
int dvk_rcvrqst_T(message *m, int timeout_ms);
int dvk_reply(int dst, const message *m);
int dvk_reply_T(int dst, const message *m, int timeout_ms);
int dvk_notify(int dst);
/* Of a server. The request of m_source that was taken last is `dst`'s to
 * answer; bits are set at `dst` in the name of `src`. */
int dvk_relay(int dst, const message *m);
int dvk_src_notify(int src, int dst);
int dvk_ntfy_value(int src, int dst, uint64_t value);
/* Of a manager: ends a wait of `dst` with EDVSWOKENUP. */
int dvk_wakeup(int dcid, int dst);

/* An address is an address where the party is the caller, and the number of a
 * grant (m3_grant()) as a pointer where it is not. Waits up to 30 s. */
int dvk_vcopy(int src, const void *saddr, int dst, void *daddr, int bytes);

/* Return an endpoint. dvk_wait4bind() is for the caller's own: a thread that
 * is not bound waits until a manager binds its process, and is bound then. */
int dvk_getep(int pid);
int dvk_wait4bind(void);
int dvk_wait4bind_T(int timeout_ms);
int dvk_wait4bindep(int endpoint);
int dvk_wait4bindep_T(int endpoint, int timeout_ms);
/* Return 0. */
int dvk_wait4unbind(int endpoint);
int dvk_wait4unbind_T(int endpoint, int timeout_ms);

/* Of the caller's container, whatever `dcid` is. `p_nr` may be SELF. */
int dvk_getprocinfo(int dcid, int p_nr, proc_usr_t *p_usr);
int dvk_getdcinfo(int dcid, dc_usr_t *dc_usr);

#ifdef __cplusplus
}
#endif

#endif
