/* Options, addresses and ports of ids, the order of their calls, and the error of each refused
 * call. */
#include "cm.h"
#include <netinet/in.h>
#include <pthread.h>

static int set(struct rdma_cm_id *id, int name, void *value, size_t len)
{
	return rdma_set_option(id, RDMA_OPTION_ID, name, value, len);
}

static void options(void)
{
	struct rdma_cm_id *id;
	uint8_t octet = 0x20;
	int word = 1;
	CHECK(!rdma_create_id(channels[ACTIVE], &id, NULL, RDMA_PS_TCP));
	CHECK(!set(id, RDMA_OPTION_ID_TOS, &octet, 1));
	FAILS(set(id, RDMA_OPTION_ID_TOS, &word, 4), EINVAL);
	CHECK(!set(id, RDMA_OPTION_ID_REUSEADDR, &word, 4));
	FAILS(set(id, RDMA_OPTION_ID_REUSEADDR, &octet, 1), EINVAL);
	CHECK(!set(id, RDMA_OPTION_ID_AFONLY, &word, 4));
	FAILS(set(id, RDMA_OPTION_ID_AFONLY, &octet, 1), EINVAL);
	CHECK(!set(id, RDMA_OPTION_ID_ACK_TIMEOUT, &octet, 1));
	FAILS(set(id, RDMA_OPTION_ID_ACK_TIMEOUT, &word, 4), EINVAL);
	FAILS(set(id, 77, &word, 4), ENOSYS);
	FAILS(rdma_set_option(id, 77, 0, &word, 4), ENOSYS);
	CHECK(!rdma_destroy_id(id));
	FAILS(rdma_create_id(channels[ACTIVE], &id, NULL, RDMA_PS_UDP), EOPNOTSUPP);
	FAILS(rdma_create_id(channels[ACTIVE], &id, NULL, 7), EINVAL);
}

/* Binds two listeners to one port, one for each address family. */
static void families(int port)
{
	struct rdma_cm_id *v6, *v4;
	struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr_in any4 = { .sin_family = AF_INET, .sin_port = htons(port) };
	int only = 1;
	CHECK(!rdma_create_id(channels[PASSIVE], &v6, NULL, RDMA_PS_TCP));
	CHECK(!rdma_create_id(channels[PASSIVE], &v4, NULL, RDMA_PS_TCP));
	CHECK(!set(v6, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)));
	CHECK(!rdma_bind_addr(v6, (struct sockaddr *)&any6));
	CHECK(!v6->verbs);
	CHECK(!rdma_listen(v6, 1));
	CHECK(!rdma_bind_addr(v4, (struct sockaddr *)&any4) && !rdma_listen(v4, 1));
	FAILS(set(v6, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)), EINVAL);
	CHECK(!rdma_destroy_id(v6) && !rdma_destroy_id(v4));
}

static void order(int port)
{
	struct rdma_conn_param param = { .qp_num = 1 };
	struct sockaddr_in peer = at("127.0.0.1", port), source = at("127.0.0.2", 0), other = at("192.0.2.77", 0);
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct sockaddr none = { .sa_family = AF_UNIX };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct rdma_cm_id *id, *wrong;
	int mask;
	CHECK(!rdma_create_id(channels[ACTIVE], &id, NULL, RDMA_PS_TCP));
	CHECK(!id->verbs && !rdma_get_src_port(id) && !rdma_get_dst_port(id));
	FAILS(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	FAILS(rdma_resolve_route(id, 100), EINVAL);
	FAILS(rdma_connect(id, &param), EINVAL);
	FAILS(rdma_accept(id, &param), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
	FAILS(rdma_bind_addr(id, &none), EINVAL);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&other), EADDRNOTAVAIL);
	FAILS(rdma_resolve_addr(id, &none, (struct sockaddr *)&peer, 100), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, &none, 100), EINVAL);
	FAILS(rdma_resolve_addr(id, (struct sockaddr *)&six, (struct sockaddr *)&peer, 100), EINVAL);
	CHECK(!rdma_resolve_addr(id, (struct sockaddr *)&source, (struct sockaddr *)&peer, 100));
	expect(ACTIVE, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && id->port_num == 1 && id->pd);
	CHECK(rdma_get_src_port(id) && rdma_get_dst_port(id) == htons(port));
	CHECK(!rdma_init_qp_attr(id, &attr, &mask) && (mask & IBV_QP_ACCESS_FLAGS) && !attr.qp_access_flags);
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&source), EINVAL);
	FAILS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&peer, 100), EINVAL);
	FAILS(rdma_connect(id, &param), EINVAL);
	CHECK(!rdma_resolve_route(id, 100));
	expect(ACTIVE, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(id->route.num_paths == 1 && id->route.path_rec);
	FAILS(rdma_resolve_route(id, 100), EINVAL);
	FAILS(rdma_listen(id, 1), EINVAL);
	param.responder_resources = 200;
	FAILS(rdma_connect(id, &param), EINVAL);
	param.responder_resources = RDMA_MAX_RESP_RES;
	param.initiator_depth = 200;
	FAILS(rdma_connect(id, &param), EINVAL);
	param.initiator_depth = RDMA_MAX_INIT_DEPTH;
	CHECK(!rdma_connect(id, &param));
	FAILS(rdma_connect(id, &param), EINVAL);
	CHECK(!rdma_notify(id, IBV_EVENT_COMM_EST));

	/* The passive end gets the address and port of the active end. */
	struct rdma_cm_id *asking = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	struct sockaddr_in *from = (struct sockaddr_in *)rdma_get_peer_addr(asking);
	CHECK(from->sin_addr.s_addr == source.sin_addr.s_addr && from->sin_port == rdma_get_src_port(id));
	CHECK(rdma_get_src_port(asking) == htons(port));
	CHECK(!rdma_reject(asking, "no", 3));
	FAILS(rdma_reject(asking, "no", 3), EINVAL);
	struct told told = expect(ACTIVE, RDMA_CM_EVENT_REJECTED);
	CHECK(told.event.status && !strcmp(told.private_data, "no"));
	FAILS(rdma_disconnect(id), EINVAL);
	CHECK(!rdma_destroy_id(asking) && !rdma_destroy_id(id));

	CHECK(!rdma_create_id(channels[ACTIVE], &wrong, NULL, RDMA_PS_TCP));
	FAILS(rdma_join_multicast(wrong, (struct sockaddr *)&peer, NULL), EOPNOTSUPP);
	FAILS(rdma_leave_multicast(wrong, (struct sockaddr *)&peer), EADDRNOTAVAIL);
	FAILS(rdma_get_request(wrong, &id), EINVAL);
	CHECK(!rdma_destroy_id(wrong));
	FAILS(rdma_ack_cm_event(NULL), EINVAL);
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_ADDR_CHANGE), "RDMA_CM_EVENT_ADDR_CHANGE"));
	CHECK(!strcmp(rdma_event_str(99), "UNKNOWN EVENT"));
}

static void names(int port)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_qp_type = IBV_QPT_RC }, *found;
	struct sockaddr_in source = at("127.0.0.2", 0);
	struct rdma_cm_id *id;
	char text[16];
	snprintf(text, sizeof(text), "%d", port);
	FAILS(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
	CHECK(!rdma_getaddrinfo("127.0.0.1", text, NULL, &found));
	CHECK(found->ai_family == AF_INET && found->ai_dst_len == sizeof(source) && !found->ai_src_len);
	CHECK(found->ai_qp_type == IBV_QPT_RC && found->ai_port_space == RDMA_PS_TCP && !found->ai_next);
	rdma_freeaddrinfo(found);
	hints.ai_flags = RAI_PASSIVE;
	CHECK(!rdma_getaddrinfo(NULL, text, &hints, &found));
	CHECK(found->ai_src_len && !found->ai_dst_len && found->ai_flags == RAI_PASSIVE);
	rdma_freeaddrinfo(found);
	hints.ai_flags = RAI_NUMERICHOST | RAI_NOROUTE;
	CHECK(rdma_getaddrinfo("localhost", text, &hints, &found));
	hints.ai_src_addr = (struct sockaddr *)&source;
	hints.ai_src_len = sizeof(source);
	CHECK(!rdma_getaddrinfo("127.0.0.1", text, &hints, &found));
	CHECK(found->ai_src_len == sizeof(source));
	CHECK(!memcmp(&((struct sockaddr_in *)found->ai_src_addr)->sin_addr, &source.sin_addr, 4));
	/* Without attributes of a queue pair, rdma_create_ep makes none. */
	CHECK(!rdma_create_ep(&id, found, NULL, NULL));
	CHECK(!id->qp && id->verbs && rdma_get_src_port(id));
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(found);
}

/* ibv_query_qp returns the attributes that rdma_cm has set. */
static void attributes(int port)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	/* The longest Private Data that its length field can state. */
	char most[255] = "most", *got;
	struct rdma_conn_param param = {
		.responder_resources = 3, .initiator_depth = 3, .private_data = most, .private_data_len = 255,
	};
	struct told told;
	struct ibv_qp_init_attr made = init;
	struct ibv_qp_attr attr;
	uint8_t timeout = 17;
	struct rdma_cm_id *id = resolved_to(port), *peer;
	CHECK(!set(id, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1));
	CHECK(!rdma_create_qp(id, NULL, &made));
	most[254] = 'x';
	CHECK(!rdma_connect(id, &param));
	told = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	peer = told.event.id;
	got = told.private_data;
	CHECK(told.event.param.conn.private_data_len == 255 && !memcmp(got, most, 255));
	made = init;
	CHECK(!rdma_create_qp(peer, NULL, &made) && !rdma_accept(peer, &param));
	CHECK(!ibv_query_qp(peer->qp, &attr, IBV_QP_STATE, &made) && attr.qp_state == IBV_QPS_RTS);
	expect(ACTIVE, RDMA_CM_EVENT_ESTABLISHED);
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_TIMEOUT, &made));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.timeout == timeout && attr.path_mtu == IBV_MTU_4096);
	CHECK(attr.max_rd_atomic == 3 && attr.max_dest_rd_atomic == 3 && attr.ah_attr.is_global);
	FAILS(rdma_establish(id), EINVAL);
	CHECK(!rdma_disconnect(id));
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	rdma_destroy_qp(peer);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(peer));
}

/* Returns the type of service of the socket whose port at this end is `port`, or whose port at
 * the peer is, if `is_remote`; -1 if there is no such connection. */
static int type_of_service(int port, int is_remote)
{
	for (int fd = 3; fd < 256; fd++) {
		struct sockaddr_in own = { 0 }, peer = { 0 };
		socklen_t len = sizeof(own), len_of_peer = sizeof(peer);
		socklen_t len_of_type = sizeof(int);
		int type;
		if (getsockname(fd, (struct sockaddr *)&own, &len) || own.sin_family != AF_INET)
			continue;
		if (getpeername(fd, (struct sockaddr *)&peer, &len_of_peer))
			continue;
		if ((is_remote ? &peer : &own)->sin_port != htons(port))
			continue;
		if (!getsockopt(fd, IPPROTO_IP, IP_TOS, &type, &len_of_type) && type)
			return type;
	}
	return -1;
}

/* A connection that an id opens has the type of service of the id. A connection that comes to a
 * listener has that of the listener. */
static void types_of_service(int port)
{
	struct sockaddr_in address = at("127.0.0.1", port);
	uint8_t of_active = 0x28, of_passive = 0x48;
	struct rdma_cm_id *listener, *id, *peer;
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_conn_param param = { 0 };
	CHECK(!rdma_create_id(channels[PASSIVE], &listener, NULL, RDMA_PS_TCP));
	CHECK(!set(listener, RDMA_OPTION_ID_TOS, &of_passive, 1));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 1));
	id = resolved_to(port);
	CHECK(!set(id, RDMA_OPTION_ID_TOS, &of_active, 1));
	CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_connect(id, &param));
	peer = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	CHECK(type_of_service(port, 0) == of_passive && type_of_service(port, 1) == of_active);
	CHECK(!rdma_reject(peer, NULL, 0) && !rdma_destroy_id(peer));
	expect(ACTIVE, RDMA_CM_EVENT_REJECTED);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(listener));
}

static int is_destroyed;

static void *destroy(void *id)
{
	CHECK(!rdma_destroy_id(id));
	__atomic_store_n(&is_destroyed, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* rdma_destroy_id waits until the events of the id are acknowledged (rdma_destroy_id(3)). */
static void unacknowledged(int port)
{
	struct sockaddr_in address = at("127.0.0.1", port);
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	pthread_t thread;
	CHECK(!rdma_create_id(channels[ACTIVE], &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
	CHECK(!rdma_get_cm_event(channels[ACTIVE], &event) && event->id == id);
	CHECK(!pthread_create(&thread, NULL, destroy, id));
	usleep(50000);
	CHECK(!__atomic_load_n(&is_destroyed, __ATOMIC_ACQUIRE));
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!pthread_join(thread, NULL) && is_destroyed);
}

/* A listener closes requests whose events the application has not taken. */
static void unreported(int port)
{
	/* An MPA Request of revision 1, with CRC and without Private Data. */
	static const char request[20] = "MPA ID Req Frame\x40\x01\0";
	enum { REQUESTS = 3 };
	struct sockaddr_in address = at("127.0.0.1", port);
	struct rdma_cm_id *listener = listener_at(port);
	struct pollfd readable = { channels[PASSIVE]->fd, POLLIN };
	int peers[REQUESTS];
	for (int each = 0; each < REQUESTS; each++) {
		peers[each] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(!connect(peers[each], (struct sockaddr *)&address, sizeof(address)));
		CHECK(send(peers[each], request, sizeof(request), 0) == sizeof(request));
	}
	/* At least one request must be reported. */
	CHECK(poll(&readable, 1, 10000) == 1);
	CHECK(!rdma_destroy_id(listener) && is_quiet(PASSIVE));
	for (int each = 0; each < REQUESTS; each++) {
		char octets[64];
		struct pollfd ends = { peers[each], POLLIN };
		ssize_t len;
		do {
			CHECK(poll(&ends, 1, 10000) == 1);
			len = recv(peers[each], octets, sizeof(octets), 0);
			/* A Reply, if one comes, has the reject bit. */
			CHECK(len < 17 || octets[16] & 0x20);
		} while (len > 0);
		close(peers[each]);
	}
}

/* A destroyed channel has no events: the call fails at once. */
static void no_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_event *event;
	CHECK(channel);
	rdma_destroy_event_channel(channel);
	FAILS(rdma_get_cm_event(channel, &event), EBADF);
	FAILS(rdma_get_cm_event(NULL, &event), EINVAL);
}

int main(int count, char **words)
{
	int port = atoi(words[1]);
	open_channels();
	no_channel();
	options();
	families(port);
	types_of_service(port);
	unacknowledged(port);
	unreported(port);
	struct rdma_cm_id *listener = listener_at(port);
	order(port);
	names(port);
	attributes(port);
	CHECK(!rdma_destroy_id(listener));
	printf("all is well\n");
	return 0;
}
