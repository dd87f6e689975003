/* Shared by the programs that use rdma_cm: an event channel for each of the two ends, and its
 * events. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(condition) do { \
	if (!(condition)) { \
		fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #condition, errno); \
		exit(1); \
	} \
} while (0)
/* Checks that a call returns -1 with this errno. */
#define FAILS(call, number) do { \
	errno = 0; \
	CHECK((call) == -1 && errno == (number)); \
} while (0)

/* The active and the passive end. */
enum { ACTIVE, PASSIVE };
static struct rdma_event_channel *channels[2];

/* An acknowledged event, with a copy of its private data. */
struct told {
	struct rdma_cm_event event;
	char private_data[256];
};

/* Prints that the expected event has not come. Exits if events wait at the other end: those may
 * say why. */
static inline void lacks_event(int line, int end, const char *expected)
{
	struct pollfd readable = { channels[!end]->fd, POLLIN };
	struct rdma_cm_event *event;
	fprintf(stderr, "line %d: end %d: no %s\n", line, end, expected);
	if (poll(&readable, 1, 0) == 0)
		return;
	while (poll(&readable, 1, 0) == 1 && !rdma_get_cm_event(channels[!end], &event))
		fprintf(stderr, "end %d: %s (%d)\n", !end, rdma_event_str(event->event), event->status);
	exit(1);
}

/* Waits for the next event, whose type is `expected`. The test limits the time of the program. */
static inline struct told expect_at(int line, int end, enum rdma_cm_event_type expected)
{
	struct told told = { 0 };
	struct rdma_cm_event *event;
	struct pollfd readable = { channels[end]->fd, POLLIN };
	while (poll(&readable, 1, 10000) == 0)
		lacks_event(line, end, rdma_event_str(expected));
	CHECK(!rdma_get_cm_event(channels[end], &event));
	if (event->event != expected) {
		fprintf(stderr, "line %d: end %d: %s (%d) in place of %s\n", line, end,
			rdma_event_str(event->event), event->status, rdma_event_str(expected));
		exit(1);
	}
	told.event = *event;
	memcpy(told.private_data, event->param.conn.private_data ? event->param.conn.private_data : "",
	       event->param.conn.private_data_len);
	CHECK(!rdma_ack_cm_event(event));
	return told;
}

#define expect(end, type) expect_at(__LINE__, end, type)

static inline int is_quiet(int end)
{
	struct pollfd readable = { channels[end]->fd, POLLIN };
	return poll(&readable, 1, 50) == 0;
}

static inline struct sockaddr_in at(const char *address, int port)
{
	struct sockaddr_in made = { .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK(inet_pton(AF_INET, address, &made.sin_addr) == 1);
	return made;
}

/* Returns an id that listens. */
static inline struct rdma_cm_id *listener_at(int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in address = at("127.0.0.1", port);
	CHECK(!rdma_create_id(channels[PASSIVE], &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address));
	CHECK(!rdma_listen(id, 8));
	return id;
}

/* Returns an id that has resolved the address and the route of its peer. */
static inline struct rdma_cm_id *resolved_to(int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in address = at("127.0.0.1", port);
	CHECK(!rdma_create_id(channels[ACTIVE], &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
	expect(ACTIVE, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 1000));
	expect(ACTIVE, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static inline void open_channels(void)
{
	for (int end = 0; end < 2; end++)
		CHECK((channels[end] = rdma_create_event_channel()));
}

/* Connects two ids, with a queue pair like this one for each. The passive id is the one of the
 * request. */
static inline void connect_both(struct rdma_cm_id *ids[2], const struct ibv_qp_init_attr *like)
{
	struct rdma_conn_param param = { .initiator_depth = 1, .responder_resources = 1 };
	struct ibv_qp_init_attr init = *like;
	CHECK(!rdma_create_qp(ids[ACTIVE], NULL, &init) && !rdma_connect(ids[ACTIVE], &param));
	ids[PASSIVE] = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	init = *like;
	CHECK(!rdma_create_qp(ids[PASSIVE], NULL, &init) && !rdma_accept(ids[PASSIVE], &param));
	expect(ACTIVE, RDMA_CM_EVENT_ESTABLISHED);
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
}

/* Waits for the next completion. */
static inline struct ibv_wc completed(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	return wc;
}

static inline int looks_like_infiniband(struct rdma_cm_id *id)
{
	return id->verbs->device->transport_type == IBV_TRANSPORT_IB;
}
