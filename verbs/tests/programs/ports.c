/* TCP and RDMA use one port number at the same time: the two are different ports, as on
 * InfiniBand. */
#include "cm.h"
#include <pthread.h>

static int server, closes;

/* A TCP server. It does not answer a request that it does not know, or it closes each connection
 * at once, if `closes` is set. */
static void *serve(void *arg)
{
	char octet;
	int peer;
	while ((peer = accept(server, NULL, NULL)) >= 0) {
		if (!closes && recv(peer, &octet, 1, 0) == 1 && octet == 'p')
			CHECK(send(peer, "P", 1, 0) == 1);
		if (closes)
			close(peer);
	}
	return NULL;
}

static void over_tcp(int port)
{
	struct sockaddr_in address = at("127.0.0.1", port);
	char octet = 'p';
	int peer = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!connect(peer, (struct sockaddr *)&address, sizeof(address)));
	CHECK(send(peer, &octet, 1, 0) == 1 && recv(peer, &octet, 1, 0) == 1 && octet == 'P');
	close(peer);
}

static void over_rdma(struct rdma_cm_id *listener, int port)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	}, made = init;
	struct ibv_recv_wr receive = { .wr_id = 5 }, *bad_receive;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad;
	struct ibv_wc wc = { 0 };
	struct rdma_conn_param param = { .private_data = "hello", .private_data_len = 6 };
	struct rdma_cm_id *id = resolved_to(port), *peer;
	CHECK(!rdma_create_qp(id, NULL, &made));
	CHECK(!ibv_post_recv(id->qp, &receive, &bad_receive));
	CHECK(!rdma_connect(id, &param));
	struct told told = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!strcmp(told.private_data, "hello") && told.event.listen_id == listener);
	peer = told.event.id;
	CHECK(rdma_get_src_port(peer) == htons(port) && rdma_get_dst_port(id) == htons(port));
	made = init;
	CHECK(!rdma_create_qp(peer, NULL, &made) && !rdma_accept(peer, &param));
	expect(ACTIVE, RDMA_CM_EVENT_ESTABLISHED);
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	/* The receive that was posted before rdma_connect is still posted: the attempt to
	 * connect to the TCP server has not consumed it. */
	CHECK(!ibv_post_send(peer->qp, &send, &bad));
	while (!ibv_poll_cq(id->recv_cq, 1, &wc))
		;
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
	CHECK(!rdma_disconnect(id));
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	rdma_destroy_qp(peer);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(peer));
}

static int questions, impostor, visits;

/* Plays another user's process that holds the UDP port: it answers that the peer is at its own
 * TCP port. */
static void *answer(void *arg)
{
	struct sockaddr_in own, from;
	socklen_t len = sizeof(own), from_len;
	unsigned char octets[64];
	CHECK(!getsockname(impostor, (struct sockaddr *)&own, &len));
	for (;;) {
		from_len = sizeof(from);
		if (recvfrom(questions, octets, sizeof(octets), 0, (struct sockaddr *)&from, &from_len) != 16)
			return NULL;
		octets[5] = 2;
		memcpy(octets + 6, &own.sin_port, 2);
		CHECK(sendto(questions, octets, 16, 0, (struct sockaddr *)&from, from_len) == 16);
		__atomic_add_fetch(&visits, 1, __ATOMIC_RELAXED);
	}
}

/* The owner of TCP port N is the peer, however late it answers and whatever another process says
 * at UDP port N. */
static void keeps_to_tcp(int port)
{
	struct sockaddr_in address = at("127.0.0.1", port), any = at("127.0.0.1", 0);
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	}, made = init;
	struct rdma_conn_param param = { 0 };
	struct rdma_cm_id *listener, *id, *peer;
	struct pollfd came;
	pthread_t thread;
	questions = socket(AF_INET, SOCK_DGRAM, 0);
	impostor = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!bind(questions, (struct sockaddr *)&address, sizeof(address)));
	CHECK(!bind(impostor, (struct sockaddr *)&any, sizeof(any)) && !listen(impostor, 9));
	CHECK(!pthread_create(&thread, NULL, answer, NULL));
	listener = listener_at(port);
	id = resolved_to(port);
	CHECK(!rdma_create_qp(id, NULL, &made) && !rdma_connect(id, &param));
	peer = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	/* The impostor has answered, and the listener's application has not accepted yet. */
	while (!__atomic_load_n(&visits, __ATOMIC_RELAXED))
		usleep(1000);
	came = (struct pollfd){ impostor, POLLIN };
	/* Longer than a probe waits. */
	CHECK(poll(&came, 1, 2000) == 0);
	made = init;
	CHECK(!rdma_create_qp(peer, NULL, &made) && !rdma_accept(peer, &param));
	expect(ACTIVE, RDMA_CM_EVENT_ESTABLISHED);
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(poll(&came, 1, 0) == 0);
	CHECK(!rdma_disconnect(id));
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	rdma_destroy_qp(id);
	rdma_destroy_qp(peer);
	CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(peer) && !rdma_destroy_id(listener));
	/* A listener is refused at a number whose UDP port another user's socket has. Only root
	 * can make such a socket here. */
	if (!geteuid() && !fchown(questions, 65534, -1)) {
		CHECK(!rdma_create_id(channels[PASSIVE], &listener, NULL, RDMA_PS_TCP));
		CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address));
		FAILS(rdma_listen(listener, 8), EADDRINUSE);
		CHECK(!rdma_destroy_id(listener));
	}
	shutdown(questions, SHUT_RDWR);
	pthread_join(thread, NULL);
	close(questions);
	close(impostor);
	/* While a listener has the UDP port, no such process can bind to it. */
	listener = listener_at(port);
	questions = socket(AF_INET, SOCK_DGRAM, 0);
	FAILS(bind(questions, (struct sockaddr *)&address, sizeof(address)), EADDRINUSE);
	CHECK(!rdma_destroy_id(listener));
	CHECK(!bind(questions, (struct sockaddr *)&address, sizeof(address)));
	close(questions);
}

int main(int count, char **words)
{
	int port = atoi(words[1]), yes = 1;
	struct sockaddr_in address = at("127.0.0.1", port), any = at("0.0.0.0", port);
	struct rdma_conn_param param = { .qp_num = 1 };
	pthread_t thread;
	open_channels();
	server = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)));
	CHECK(!bind(server, (struct sockaddr *)&address, sizeof(address)) && !listen(server, 9));
	CHECK(!pthread_create(&thread, NULL, serve, NULL));
	/* A server that speaks TCP only is no peer. */
	closes = 1;
	struct rdma_cm_id *listener, *second, *id = resolved_to(port);
	CHECK(!rdma_connect(id, &param));
	CHECK(expect(ACTIVE, RDMA_CM_EVENT_REJECTED).event.status);
	CHECK(!rdma_destroy_id(id));

	for (closes = 0; closes < 2; closes++) {
		listener = listener_at(port);
		CHECK(rdma_get_src_port(listener) == htons(port));
		/* Now the number is taken for RDMA, at the address and at the unspecified
		 * address that covers it. */
		CHECK(!rdma_create_id(channels[PASSIVE], &second, NULL, RDMA_PS_TCP));
		FAILS(rdma_bind_addr(second, (struct sockaddr *)&address), EADDRINUSE);
		FAILS(rdma_bind_addr(second, (struct sockaddr *)&any), EADDRINUSE);
		CHECK(!rdma_destroy_id(second));
		if (!closes)
			over_tcp(port);
		over_rdma(listener, port);
		over_rdma(listener, port);
		CHECK(!rdma_destroy_id(listener));
	}
	/* Without the TCP server, the listener takes the TCP port itself. */
	shutdown(server, SHUT_RDWR);
	pthread_join(thread, NULL);
	close(server);
	listener = listener_at(port);
	CHECK(!rdma_create_id(channels[PASSIVE], &second, NULL, RDMA_PS_TCP));
	FAILS(rdma_bind_addr(second, (struct sockaddr *)&address), EADDRINUSE);
	CHECK(!rdma_destroy_id(second));
	over_rdma(listener, port);
	CHECK(!rdma_destroy_id(listener));
	keeps_to_tcp(port);
	printf("all is well\n");
	return 0;
}
