/*
 * M3-IPC: messages, notifications, copies and rings between the processes of
 * a container, wherever they run.
 *
 * Overview: m3ipc(7). Every function has a manual page; dvk(3) describes the
 * published names, which are in m3ipc_dvk.h.
 *
 * Results. A function returns 0, or what its comment says (never negative),
 * or one of the error numbers below. m3_strerror() says what a number means.
 *
 * Threads. A port belongs to one thread at a time: a call on a port that is
 * inside another call answers M3_EBUSY. Threads that talk at the same time
 * connect a port each, and so have an endpoint each. Rings and wakers may be
 * used by several threads.
 *
 * Fork. A child inherits no endpoint: calls on inherited ports answer
 * M3_ENOTBOUND, and closing one only frees it. The child connects anew.
 */
#ifndef M3IPC_H
#define M3IPC_H

#include <spawn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define M3_VERSION_MAJOR 0
#define M3_VERSION_MINOR 2
#define M3_VERSION_PATCH 0

/* "MAJOR.MINOR.PATCH" of the library that runs. */
const char *m3_version(void);

/* ---- errors ------------------------------------------------------------ */

#define M3_EACCESS     (-13)  /* the grant does not allow this direction */
#define M3_EGRANT      (-14)  /* no such grant was ever given */
#define M3_EBUSY       (-16)  /* in use by another call, or the ring is full */
#define M3_ERANGE      (-34)  /* the copy lies outside the granted memory */
#define M3_ECORRUPT    (-60)  /* the peer wrote garbage into the channel */
#define M3_ETIMEDOUT   (-61)  /* the time limit passed */
#define M3_EDEADLOCK   (-101) /* calls would have waited for each other */
#define M3_ESRCDIED    (-108) /* the peer died before it answered */
#define M3_EDSTDIED    (-109) /* ... before it took the message */
#define M3_ENOTRUNNING (-303) /* the container is not running on this node */
#define M3_ENOENDPOINT (-304) /* nobody is bound to this endpoint */
#define M3_EENDPOINT   (-306) /* not a valid endpoint for this call */
#define M3_ENOLINK     (-307) /* no link to the node of the peer */
#define M3_ENOTBOUND   (-310) /* not bound; port closed or inherited by fork */
#define M3_EPENDING    (-317) /* it owes answers or is being handed over */
#define M3_ENOBROKER   (-318) /* the node daemon cannot be reached */
#define M3_ENOTWAITING (-324) /* the destination awaits no reply of ours */
#define M3_EREVOKED    (-331) /* the grant was taken back */
#define M3_EMOVED      (-332) /* the endpoint has another owner now */
#define M3_EDENIED     (-335) /* privileges do not allow this */
#define M3_EINUSE      (-337) /* the endpoint or name is somebody else's */
#define M3_EFULL       (-338) /* a table is full */
#define M3_EINVALID    (-339) /* a length or argument is out of range */
#define M3_EWOKENUP    (-348) /* the wait was ended by a wake-up */
#define M3_EFENCED     (-401) /* another owner of the endpoint was promoted */
#define M3_ELIBRARY    (-999) /* an error inside the library */

/* Errors of the kernel are -1000 less errno. */
#define M3_IS_OS_ERROR(error) ((error) <= -1000 && (error) >= -5095)
#define M3_OS_ERRNO(error)    (-1000 - (error))

/* A sentence without a full stop. Never NULL. That of a kernel error is valid
 * until the thread asks for another one. */
const char *m3_strerror(int error);

/* The constant, "M3_ETIMEDOUT"; "M3_EOS" for every error of the kernel. */
const char *m3_errname(int error);

/* ---- ports: m3_connect(3) ---------------------------------------------- */

/* Where a port's endpoint is wanted: any number, any sender. */
#define M3_ANY (-1)

/* Time limits are milliseconds; any negative one is for ever. */
#define M3_NOWAIT  0
#define M3_FOREVER (-1)

/* Endpoints below this belong to servers of the container. */
#define M3_FIRST_PROGRAM 256
#define M3_ENDPOINTS     8192

/* What gives a port, a ring or a waker sets it to NULL when it fails; calls on
 * that answer M3_ENOTBOUND. */
typedef struct m3_port m3_port;

/* Binds an endpoint. `path` is the broker's socket; NULL for that of this
 * container ($M3IPC_BROKER, else /run/dvs/broker). `endpoint` is a number, or
 * M3_ANY for one that the broker chooses. */
int m3_connect(const char *path, int endpoint, m3_port **port);

/* Binds as soon as a manager has bound this process: m3_bind_for(). */
int m3_connect_when_bound(const char *path, int timeout_ms, m3_port **port);

/* Binds over a socket that the node daemon handed to this process. The
 * descriptor is the library's from now on, also when the call fails, unless
 * with M3_EINVALID. */
int m3_connect_fd(int fd, int endpoint, m3_port **port);

/* Gives the endpoint up and frees the port. Who waits for it is told. */
int m3_close(m3_port *port);

/* The port's endpoint. */
int m3_endpoint(m3_port *port);

/* The incarnation of the binding: higher than that of every earlier owner of
 * the number. */
int m3_epoch(m3_port *port, uint64_t *epoch);

/* How the port waits. At first as $DVS_WAIT says (adaptive, park, spin). */
#define M3_WAIT_ADAPTIVE 0 /* look a little, as far as it pays, then sleep */
#define M3_WAIT_PARK     1 /* sleep at once */
#define M3_WAIT_SPIN     2 /* look for about a second: takes a CPU */
int m3_set_wait_mode(m3_port *port, int mode);

/* The endpoint of a process of the container, by its pid there. */
int m3_getep(m3_port *port, int pid);

/* Calls the port's endpoint something, in all of the container, until it ends:
 * 1 to M3_NAME_BYTES_MAX printable characters without blanks and '/'. */
#define M3_NAME_BYTES_MAX 32
int m3_set_name(m3_port *port, const char *name);
/* Waits until an endpoint of any node is called so; returns it. */
int m3_find(m3_port *port, const char *name, int timeout_ms);

/* Waits until somebody is bound to `endpoint`, or nobody. */
int m3_wait4bind(m3_port *port, int endpoint, int timeout_ms);
int m3_wait4unbind(m3_port *port, int endpoint, int timeout_ms);

/* ---- messages: m3_send(3) ---------------------------------------------- */

#define M3_PAYLOAD_BYTES 56
#define M3_DATA_BYTES_MAX 2048

/* `type` and `payload` are the sender's; `source` is filled in on arrival by
 * the receiver's library and ignored on sending. Numbers travel as they are:
 * nodes of a cluster have one byte order. */
typedef struct m3_message {
    int32_t source;
    int32_t type;
    union {
        unsigned char bytes[M3_PAYLOAD_BYTES];
        char text[M3_PAYLOAD_BYTES];
        int32_t i32[14];
        uint32_t u32[14];
        int64_t i64[7];
        uint64_t u64[7];
        double f64[7];
    } payload;
} m3_message;

/* Sends and waits until the peer has taken the message. To a peer that waits
 * for our reply it is the reply. */
int m3_send(m3_port *port, int to, const m3_message *message, int timeout_ms);

/* Sends a request and waits for its reply, which replaces `message`. */
int m3_sendrec(m3_port *port, int to, m3_message *message, int timeout_ms);

/* Takes a message of `from`, or of anybody (M3_ANY). Notifications stay. */
int m3_receive(m3_port *port, int from, m3_message *message, int timeout_ms);

/* Takes the next request of anybody; plain messages stay. */
int m3_rcvrqst(m3_port *port, m3_message *message, int timeout_ms);

/* Answers the request that was taken from `to` last. Never waits. */
int m3_reply(m3_port *port, int to, const m3_message *message);

/* Sets bits at `to`; they merge until it looks. Never waits. */
int m3_notify(m3_port *port, int to, uint64_t mask);

/* The same with up to M3_DATA_BYTES_MAX bytes of data beside the message. */
int m3_send_data(m3_port *port, int to, const m3_message *message,
                 const void *data, size_t bytes, int timeout_ms);
int m3_sendrec_data(m3_port *port, int to, m3_message *message,
                    const void *data, size_t bytes, int timeout_ms);
int m3_reply_data(m3_port *port, int to, const m3_message *message,
                  const void *data, size_t bytes);

/* The data that came with the last message or reply: returns its length and
 * sets `data`, which is valid until the next call on the port. */
int m3_data(m3_port *port, const void **data);

/* ---- waiting for anything: m3_wait(3) ---------------------------------- */

typedef struct m3_ring_server m3_ring_server;

#define M3_EVENT_MESSAGE     1 /* message; its data is in m3_data() */
#define M3_EVENT_NOTIFIED    2 /* source, mask */
#define M3_EVENT_RING_OPENED 3 /* source, ring_id, ring: yours to close */
#define M3_EVENT_RING_READY  4 /* ring_id: take its submissions */
#define M3_EVENT_RING_CLOSED 5 /* ring_id, error */
#define M3_EVENT_WOKEN       6 /* m3_wake() was called */

typedef struct m3_event {
    int32_t kind;
    int32_t source;
    int32_t error;
    int32_t reserved;
    uint64_t mask;
    uint64_t ring_id;
    m3_ring_server *ring;
    uint64_t spare[3];
    m3_message message;
} m3_event;

/* The next thing that concerns the port, notifications first. */
int m3_wait(m3_port *port, m3_event *event, int timeout_ms);

/* The next message or notification of one peer; all else stays. */
int m3_wait_from(m3_port *port, int from, m3_event *event, int timeout_ms);

/* For event loops: a descriptor that is readable when m3_wait() has something,
 * from when one answered M3_ETIMEDOUT until the next one. Other calls in
 * between change nothing of this. It may be readable for nothing, and is so
 * when it is asked for the first time. It is the port's: do not read, write or
 * close it. */
int m3_fd(m3_port *port);

typedef struct m3_waker m3_waker;

/* Ends a wait in m3_wait() with M3_EVENT_WOKEN, from any thread. A waker may
 * outlive its port. Closing one is its thread's last use of it. */
int m3_waker_open(m3_port *port, m3_waker **waker);
int m3_wake(m3_waker *waker);
int m3_waker_close(m3_waker *waker);

/* ---- grants and copies: m3_grant(3) ------------------------------------ */

#define M3_READ  1 /* the peer may read */
#define M3_WRITE 2 /* the peer may write */

/* Lends memory to one endpoint. The memory stays mapped until the grant is
 * revoked or the port closed. What the peer does with it happens while this
 * port is inside a call. No grant is 0. */
int m3_grant(m3_port *port, int to, void *memory, size_t bytes, int access,
             uint64_t *grant);

/* Takes a grant back: nobody touches the memory after this. */
int m3_revoke(m3_port *port, uint64_t grant);

/* A place in granted memory. `reserved` is 0. */
typedef struct m3_place {
    int32_t owner;
    int32_t reserved;
    uint64_t grant;
    uint64_t offset;
} m3_place;

/* Copies between memory of a peer and our own. */
int m3_copy_from(m3_port *port, const m3_place *from, void *data, size_t bytes,
                 int timeout_ms);
int m3_copy_to(m3_port *port, const void *data, size_t bytes,
               const m3_place *to, int timeout_ms);

/* Copies between two grants, of which one may be our own. */
int m3_vcopy(m3_port *port, const m3_place *from, const m3_place *to,
             size_t bytes, int timeout_ms);

/* ---- rings: m3_ring(3) ------------------------------------------------- */

typedef struct m3_ring m3_ring;

/* A request. Its data lies in the ring's arena: `out_bytes` bytes go with it,
 * up to `in_capacity` come back to the same place. */
typedef struct m3_submission {
    uint32_t tag; /* comes back; unique among those in flight */
    uint16_t op;
    uint16_t flags;
    uint64_t sequence;
    uint32_t arena_offset;
    uint32_t out_bytes;
    uint32_t in_capacity;
    uint32_t reserved; /* 0 */
    uint64_t args[3];
} m3_submission;

typedef struct m3_completion {
    uint32_t tag;
    uint32_t status; /* 0, or an errno as a positive number */
    uint64_t sequence;
    uint32_t in_bytes;
    uint32_t reserved; /* 0 */
    uint64_t epoch;
    uint64_t results[4];
} m3_completion;

/* Opens a ring to `to`, waiting until it is bound. `entries` is a power of
 * two, at most 1024; `arena_bytes` a multiple of 4096, at most 256 MiB. */
int m3_ring_open(m3_port *port, int to, uint32_t entries, uint32_t arena_bytes,
                 int timeout_ms, m3_ring **ring);
int m3_ring_close(m3_ring *ring);

/* Writes a request; the server sees it after m3_ring_publish(). M3_EBUSY when
 * as many are in flight as the ring has entries. */
int m3_ring_submit(m3_ring *ring, const m3_submission *submission);
int m3_ring_publish(m3_ring *ring);

/* Takes a completion: 1; 0 when there is none. An error is final. */
int m3_ring_poll(m3_ring *ring, m3_completion *completion);

/* Waits until m3_ring_poll() has something to say. */
int m3_ring_wait(m3_ring *ring, int timeout_ms);

/* For event loops: arm, and when that answers 0, sleep on the descriptor, then
 * disarm and poll the ring. When it answers 1 something is there already. */
int m3_ring_fd(m3_ring *ring);
int m3_ring_arm(m3_ring *ring);
int m3_ring_disarm(m3_ring *ring);

/* The memory both ends share, and its length; NULL when there is none. Valid
 * until the ring is closed. The peer may change it at any time: copy what you
 * check. */
void *m3_ring_arena(m3_ring *ring, size_t *bytes);

/* The server's end, from M3_EVENT_RING_OPENED. Next: 1, or 0 when there is no
 * request. One completion for each. */
int m3_ring_server_next(m3_ring_server *ring, m3_submission *submission);
int m3_ring_server_complete(m3_ring_server *ring,
                            const m3_completion *completion);
int m3_ring_server_publish(m3_ring_server *ring);
void *m3_ring_server_arena(m3_ring_server *ring, size_t *bytes);
int m3_ring_server_close(m3_ring_server *ring);

/* ---- delegation: m3_relay(3) ------------------------------------------- */

/* Passes the request that was taken from `of` last on to `to`, which sees it
 * as a request of `of` and answers it. The answer travels on while this port
 * waits in a call or begins one. Never waits for `to`. */
int m3_relay(m3_port *port, int of, int to, const m3_message *message);
int m3_relay_data(m3_port *port, int of, int to, const m3_message *message,
                  const void *data, size_t bytes);

/* Sets bits at `to` in the name of `source`. Never waits for `to`. */
int m3_notify_for(m3_port *port, int source, int to, uint64_t mask);

/* ---- managers: m3_set_privileges(3) ------------------------------------ */

/* Calls that an endpoint may make. Receiving and answering need none. */
#define M3_CALL_SEND     1  /* m3_send() to whom does not wait for it */
#define M3_CALL_SENDREC  2
#define M3_CALL_NOTIFY   4
#define M3_CALL_COPY     8  /* copies from and to grants of others */
#define M3_CALL_RING     16 /* opening rings */
#define M3_CALL_DELEGATE 32 /* speaking for another endpoint */
#define M3_CALL_MANAGE   64 /* the calls of this section */
#define M3_CALL_INFO     128 /* m3_dc_info() and its like */

#define M3_PEER_RANGES_MAX 64

typedef struct m3_range {
    uint16_t first;
    uint16_t last;
} m3_range;

/* The endpoints in the first `count` ranges. */
typedef struct m3_peers {
    uint32_t count;
    m3_range ranges[M3_PEER_RANGES_MAX];
} m3_peers;

typedef struct m3_privileges {
    uint32_t calls;
    m3_peers to;    /* to whom it may open a channel */
    m3_peers from;  /* who may open a channel to it */
    m3_peers rings; /* to whom it may open a ring */
} m3_privileges;

/* What `endpoint` may do, and who may call it; from now on. */
int m3_get_privileges(m3_port *port, int endpoint, m3_privileges *privileges);
int m3_set_privileges(m3_port *port, int endpoint,
                      const m3_privileges *privileges);

/* Ends a wait of `endpoint` for a message or event with M3_EWOKENUP. */
int m3_wakeup(m3_port *port, int endpoint);

/* Binds another process of this node, by its pid in the container, to a
 * number, one of a server too, or to a free one (M3_ANY): it has it when it
 * connects next. Returns the endpoint. */
int m3_bind_for(m3_port *port, int pid, int endpoint);

/* ---- what there is: m3_dc_info(3) -------------------------------------- */

/* What an endpoint sent since it was bound. */
typedef struct m3_traffic {
    uint64_t messages; /* replies too */
    uint64_t notifications;
    uint64_t entries;  /* of rings */
    uint64_t copies;   /* requests of up to 64 KiB */
} m3_traffic;

typedef struct m3_info_dc {
    uint32_t dc;
    uint32_t node; /* which tells this: the caller's own */
    uint32_t endpoints_here;
    uint32_t endpoints_elsewhere; /* that are known here */
    uint32_t nodes_elsewhere;
    uint32_t channels;
    uint32_t waiters; /* for endpoints that are to come or go */
    uint32_t first_program;
    uint32_t programs; /* numbers this node gives to programs */
    uint32_t endpoints_max;
    uint32_t channels_max; /* of one endpoint */
    uint32_t reserved[5];
} m3_info_dc;

#define M3_STATE_BOUND   0
#define M3_STATE_HELD    1 /* about to be handed over */
#define M3_STATE_LEAVING 2 /* ended; its last words are on their way */

typedef struct m3_info_endpoint {
    int endpoint;
    int node;
    int pid; /* in the container; 0 of servers and on other nodes */
    int state;
    int waits_for; /* an endpoint, or -1 */
    uint32_t channels;
    uint64_t epoch;
    m3_traffic sent_near; /* to endpoints of the caller's node */
    m3_traffic sent_far;  /* over its proxies */
    uint64_t reserved[2];
} m3_info_endpoint;

#define M3_SENT_NOTHING 0
#define M3_SENT_MESSAGE 1
#define M3_SENT_REQUEST 2
#define M3_SENT_REPLY   3

/* What one end of a channel counted, as it says itself. */
typedef struct m3_end {
    int endpoint;
    uint32_t messages; /* the number of the last; a reply has its request's */
    int last;          /* M3_SENT_* */
    uint32_t taken;    /* the number of the last it took */
    int awaits_answer;
    uint32_t notifications;
    uint32_t entries;  /* that it put into the ring */
    uint32_t entries_taken;
} m3_end;

#define M3_CHANNEL_MESSAGES   0
#define M3_CHANNEL_RING       1
#define M3_CHANNEL_DELEGATION 2
#define M3_CHANNEL_COPIES     3

typedef struct m3_info_channel {
    uint64_t channel; /* its name on this node */
    uint32_t lane;
    int kind;         /* M3_CHANNEL_* */
    uint32_t ring_entries;
    uint32_t arena_bytes;
    int node;         /* of the party of another node; 0 when there is none */
    int pair;         /* of proxies, then */
    int is_counted;   /* 0 when the counts cannot be read */
    uint32_t reserved[3];
    m3_end left;      /* who opened it */
    m3_end right;
} m3_info_channel;

#define M3_PROXY_UP      0
#define M3_PROXY_DOWN    1
#define M3_PROXY_UNKNOWN 2

typedef struct m3_info_proxy {
    int node;
    int pair;
    int state; /* M3_PROXY_* */
    uint32_t endpoints; /* of the container there, that are known here */
    uint32_t channels;  /* of the container over this pair */
    uint32_t reserved[3];
} m3_info_proxy;

int m3_dc_info(m3_port *port, m3_info_dc *info);
int m3_endpoint_info(m3_port *port, int endpoint, m3_info_endpoint *info);

/* Lists, in parts. `*cursor` is 0 at first, and 0 again after the last part.
 * Return how many there are in this one, at most `max`. */
int m3_endpoints_info(m3_port *port, uint64_t *cursor, m3_info_endpoint *list,
                      size_t max);
/* Channels of `endpoint`, or of everybody (M3_ANY). */
int m3_channels_info(m3_port *port, int endpoint, uint64_t *cursor,
                     m3_info_channel *list, size_t max);
int m3_proxies_info(m3_port *port, uint64_t *cursor, m3_info_proxy *list,
                    size_t max);

/* ---- change of owner ---------------------------------------------------- */

/* Waits until `endpoint` is handed over to this process, which is a backup of
 * its owner until then. */
int m3_stand_by(const char *path, int endpoint, int timeout_ms, m3_port **port);

/* The same over a connected socket, which is the library's from now on, also
 * when the call fails, unless with M3_EINVALID. Whoever shuts it down ends the
 * wait with M3_ENOBROKER. */
int m3_stand_by_fd(int fd, int endpoint, int timeout_ms, m3_port **port);

/* Of the owner or a manager: from now on the owner takes no new message.
 * Returns when it owes no answer either. */
int m3_migration_start(m3_port *port, int endpoint, int timeout_ms);

/* Hands it over to the process `pid` (in the container) of `node` that stands
 * by, or lets the owner go on. The old owner's calls answer M3_EMOVED then. */
int m3_migration_commit(m3_port *port, int endpoint, int node, int pid,
                        int timeout_ms);
int m3_migration_rollback(m3_port *port, int endpoint);

/* Of a manager: the process that stands by is the owner, whoever was before
 * and can no more. `epoch` is higher than any before. */
int m3_promote(m3_port *port, int endpoint, int node, int pid, uint64_t epoch);

/* ---- coordination: m3_cs_open(3), m3_group_join(3) ----------------------- */

/* A session with the coordination server of this node. Several threads may
 * use it at a time. What is refused is an error of the kernel:
 * M3_OS_ERRNO(error) is its errno. */
typedef struct m3_cs m3_cs;

int m3_cs_open(const char *path, m3_cs **cs);
/* With the session everything ends that it holds, once its groups are left. */
int m3_cs_close(m3_cs *cs);

/* What is contended for. */
#define M3_CS_LOCK     1
#define M3_CS_ELECTION 2

/* Waits for a lock, first come first served. The token rises from owner to
 * owner: who protects something refuses smaller ones. */
int m3_cs_lock(m3_cs *cs, const char *name, int timeout_ms, uint64_t *token);
int m3_cs_unlock(m3_cs *cs, const char *name, uint64_t token);

/* Waits until this session leads, and says `value` of itself. */
int m3_cs_campaign(m3_cs *cs, const char *name, const void *value,
                   size_t bytes, int timeout_ms, uint64_t *token);
int m3_cs_resign(m3_cs *cs, const char *name, uint64_t token);

/* Whether the token is still the owner's: asked of the cluster. */
int m3_cs_confirm(m3_cs *cs, int kind, const char *name, uint64_t token);

typedef struct m3_cs_holder {
    uint64_t token;       /* 0: nobody */
    int node;             /* index of its node in the container */
    uint32_t value_bytes; /* that a leader says of itself */
    uint64_t reserved[2];
} m3_cs_holder;

/* Who has it, once that is another one than `seen`, or the time is over. */
#define M3_CS_ANY UINT64_MAX
int m3_cs_owner(m3_cs *cs, int kind, const char *name, uint64_t seen,
                int timeout_ms, m3_cs_holder *holder, void *value, size_t room);

/* Values of up to M3_CS_VALUE_BYTES_MAX. Returns how many bytes it has, of
 * which as many were copied as there was room for. */
#define M3_CS_VALUE_BYTES_MAX 4096
int m3_cs_get(m3_cs *cs, const char *key, void *value, size_t room,
              uint64_t *revision);

/* `condition`: M3_CS_ANY, M3_CS_ABSENT or the revision that the key has. */
#define M3_CS_ABSENT 0
int m3_cs_put(m3_cs *cs, const char *key, const void *value, size_t bytes,
              uint64_t condition, uint64_t *revision);
int m3_cs_delete(m3_cs *cs, const char *key, uint64_t condition);

#define M3_CS_PUT    1
#define M3_CS_DELETE 2
#define M3_CS_LOST   3 /* changes are not known any more: list again */

typedef struct m3_cs_change {
    int kind; /* M3_CS_PUT, M3_CS_DELETE, M3_CS_LOST */
    uint32_t value_bytes;
    uint64_t revision;
    const char *key;
    const void *value;
    uint64_t reserved[2];
} m3_cs_change;

/* Calls `told` for each key that begins with `prefix`; `*seen` is where a
 * watch goes on. Return how many there were. */
int m3_cs_list(m3_cs *cs, const char *prefix,
               void (*told)(void *argument, const m3_cs_change *change),
               void *argument, uint64_t *seen);
int m3_cs_watch(m3_cs *cs, const char *prefix, uint64_t *seen, int timeout_ms,
                void (*told)(void *argument, const m3_cs_change *change),
                void *argument);

typedef struct m3_cs_node {
    int node;     /* index in the container */
    int answered; /* 0: not in time, and the rest is older, or 0 */
    uint32_t cpus;
    uint32_t reserved;
    uint64_t load; /* thousandths of a process, over one minute */
    uint64_t memory_bytes;
    uint64_t available_bytes;
    uint64_t round_trip_us;
    uint64_t links;
    uint64_t age_ms;
} m3_cs_node;

/* What the container's nodes are like. Returns how many there are, of which at
 * most `max` were written. */
int m3_cs_sense(m3_cs *cs, int timeout_ms, m3_cs_node *nodes, size_t max);

/* Membership of a group: the same views and the same messages in the same
 * order for all members. */
typedef struct m3_group m3_group;

int m3_group_join(m3_cs *cs, const char *group, const char *name,
                  int timeout_ms, m3_group **member);
int m3_group_leave(m3_group *group);
int m3_group_id(m3_group *group, uint64_t *id);

#define M3_GROUP_AGREED 1 /* given when the member's server has it */
#define M3_GROUP_SAFE   2 /* given when the servers of all members have it */

/* Messages of up to M3_GROUP_BYTES_MAX. Returns when it is on its way; an
 * error may be of an earlier message. */
#define M3_GROUP_BYTES_MAX 65532
int m3_group_send(m3_group *group, int level, const void *message,
                  size_t bytes);
/* Waits until the server has everything that was sent. */
int m3_group_flush(m3_group *group);

#define M3_GROUP_VIEW    1
#define M3_GROUP_MESSAGE 2

typedef struct m3_group_member {
    uint64_t id;
    const char *name;
    int node;
    int reserved;
} m3_group_member;

typedef struct m3_group_event {
    int kind;        /* M3_GROUP_VIEW, M3_GROUP_MESSAGE */
    int level;       /* of a message */
    uint64_t index;  /* rises; the same for all members */
    uint64_t sender; /* of a message: the id of a member */
    uint64_t number; /* of the view; of the message among its sender's */
    const void *data;
    size_t bytes;
    const m3_group_member *members;
    size_t member_count;
    uint64_t reserved[2];
} m3_group_event;

/* Waits for what this member was not given yet, and calls `told` for each.
 * Returns how many there were. */
int m3_group_receive(m3_group *group, int timeout_ms,
                     void (*told)(void *argument, const m3_group_event *event),
                     void *argument);

/* ---- jobs: m3_job_start(3) ---------------------------------------------- */

/* Starts a program on another node, as on(1) does: a node's name, "any",
 * "least" or "all". `pid` is a child of the caller that stands for it, for
 * waitpid(2) and kill(2). `actions` are for the program's descriptors, as of
 * posix_spawn(3); NULL: none. `envp` NULL: the caller's. */
int m3_job_start(const char *place, const posix_spawn_file_actions_t *actions,
                 char *const argv[], char *const envp[], pid_t *pid);

#ifdef __cplusplus
}
#endif

#endif
