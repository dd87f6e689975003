/* Two connections take their receives from one shared queue, and messages come before their
 * receives. Both ends are in this process. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); \
			exit(1); \
		} \
	} while (0)

enum { CONNECTIONS = 2, MESSAGES = 6, LEN = 3000 };

static struct rdma_event_channel *channels[2];

static struct rdma_cm_event *event(int end, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channels[end], &event));
	CHECK(event->event == type);
	return event;
}

static struct rdma_cm_id *done(int end, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *of = event(end, type);
	struct rdma_cm_id *id = type == RDMA_CM_EVENT_CONNECT_REQUEST ? of->id : NULL;
	CHECK(!rdma_ack_cm_event(of));
	return id;
}

static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		poll(NULL, 0, 1);
	CHECK(count == 1);
	return wc;
}

/* Returns the next asynchronous event, which must come within five seconds. */
static struct ibv_async_event told(struct ibv_context *device)
{
	struct pollfd ready = { .fd = device->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	CHECK(poll(&ready, 1, 5000) == 1);
	CHECK(!ibv_get_async_event(device, &event));
	ibv_ack_async_event(&event);
	return event;
}

static char source[LEN], inbox[MESSAGES + 2][LEN];

static void post(struct ibv_srq *srq, struct ibv_mr *mr, int id)
{
	struct ibv_sge sge = { (uintptr_t)inbox[id], LEN, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
}

int main(int argc, char **argv)
{
	struct rdma_cm_id *listener, *from[CONNECTIONS], *to[CONNECTIONS];
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	unsigned i, each[CONNECTIONS] = { 0 };

	CHECK(argc == 2 || argc == 3);
	address.sin_port = htons(atoi(argv[1]));
	CHECK(inet_pton(AF_INET, argc == 3 ? argv[2] : "127.0.0.1", &address.sin_addr) == 1);
	CHECK(channels[0] = rdma_create_event_channel());
	CHECK(channels[1] = rdma_create_event_channel());
	CHECK(!rdma_create_id(channels[1], &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address));
	CHECK(!rdma_listen(listener, 8));

	struct ibv_context *device = listener->verbs;
	CHECK(device);
	struct ibv_pd *pd = ibv_alloc_pd(device);
	CHECK(pd);
	struct ibv_cq *sent = ibv_create_cq(device, 64, NULL, NULL, 0);
	struct ibv_cq *received = ibv_create_cq(device, 64, NULL, NULL, 0);
	CHECK(sent && received);
	struct ibv_device_attr can;
	CHECK(!ibv_query_device(device, &can));
	CHECK(can.max_srq > 0 && can.device_cap_flags & IBV_DEVICE_RC_RNR_NAK_GEN);
	struct ibv_srq_init_attr_ex wanted = {
		.attr = { .max_wr = 16, .max_sge = 1 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = pd,
	};
	struct ibv_srq *srq = ibv_create_srq_ex(device, &wanted);
	CHECK(srq && wanted.attr.max_wr >= 16 && wanted.attr.max_sge >= 1);
	uint32_t number;
	CHECK(!ibv_get_srq_num(srq, &number));
	struct ibv_srq_init_attr too_deep = { .attr = { .max_wr = can.max_srq_wr + 1 } };
	CHECK(!ibv_create_srq(pd, &too_deep) && errno == EINVAL);
	struct ibv_mr *mr = ibv_reg_mr(pd, inbox, sizeof inbox, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *mr_sent = ibv_reg_mr(pd, source, sizeof source, 0);
	CHECK(mr && mr_sent);
	for (i = 0; i < LEN; i++)
		source[i] = i * 7 + (i >> 8);

	for (i = 0; i < CONNECTIONS; i++) {
		struct ibv_qp_init_attr attr = {
			.send_cq = sent, .recv_cq = received, .qp_type = IBV_QPT_RC,
			.cap = { 16, 16, 1, 1, 0 }, .sq_sig_all = 1,
		};
		CHECK(!rdma_create_id(channels[0], &from[i], NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(from[i], NULL, (struct sockaddr *)&address, 1000));
		done(0, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(from[i], 1000));
		done(0, RDMA_CM_EVENT_ROUTE_RESOLVED);
		CHECK(!rdma_create_qp(from[i], pd, &attr));
		CHECK(!rdma_connect(from[i], &param));
		to[i] = done(1, RDMA_CM_EVENT_CONNECT_REQUEST);
		attr.srq = srq;
		CHECK(!rdma_create_qp(to[i], pd, &attr));
		CHECK(to[i]->qp->srq == srq);
		struct ibv_recv_wr own = { 0 }, *bad;
		CHECK(ibv_post_recv(to[i]->qp, &own, &bad) == EINVAL && bad == &own);
		CHECK(!rdma_accept(to[i], &param));
		done(1, RDMA_CM_EVENT_ESTABLISHED);
		done(0, RDMA_CM_EVENT_ESTABLISHED);
	}

	/* Messages come before any receive is posted. */
	for (i = 0; i < MESSAGES; i++) {
		struct ibv_sge sge = { (uintptr_t)source, LEN - i, mr_sent->lkey };
		struct ibv_send_wr wr = {
			.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
		}, *bad;
		CHECK(!ibv_post_send(from[i % CONNECTIONS]->qp, &wr, &bad));
	}
	for (i = 0; i < MESSAGES; i++)
		CHECK(completion(sent).status == IBV_WC_SUCCESS);
	poll(NULL, 0, 50);
	struct ibv_wc wc;
	CHECK(!ibv_poll_cq(received, 1, &wc));
	for (i = 0; i < MESSAGES; i++) {
		post(srq, mr, i);
		wc = completion(received);
		unsigned of = wc.qp_num == to[0]->qp->qp_num ? 0 : 1;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
		CHECK(wc.qp_num == to[of]->qp->qp_num);
		CHECK(wc.byte_len == LEN - (CONNECTIONS * each[of]++ + of));
		CHECK(!memcmp(inbox[i], source, wc.byte_len));
	}
	CHECK(each[0] == each[1]);

	/* The limit event comes once, and sets the limit to 0. */
	struct ibv_srq_attr limit = { .srq_limit = 2 }, now;
	post(srq, mr, 0);
	post(srq, mr, 1);
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_MAX_WR));
	CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	CHECK(!ibv_query_srq(srq, &now) && now.srq_limit == 2 && now.max_wr >= 16);
	for (i = 0; i < 2; i++) {
		struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
		CHECK(!ibv_post_send(from[i]->qp, &wr, &bad));
		CHECK(completion(sent).status == IBV_WC_SUCCESS);
		CHECK(completion(received).byte_len == 0);
	}
	struct ibv_async_event of = told(device);
	CHECK(of.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && of.element.srq == srq);
	CHECK(!ibv_query_srq(srq, &now) && now.srq_limit == 0);

	/* A closed queue pair leaves its unused receive in the shared queue, for the other queue
	 * pair. */
	post(srq, mr, 7);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(!rdma_disconnect(from[0]));
	done(1, RDMA_CM_EVENT_DISCONNECTED);
	done(0, RDMA_CM_EVENT_DISCONNECTED);
	of = told(device);
	CHECK(of.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && of.element.qp == to[0]->qp);
	CHECK(!ibv_poll_cq(received, 1, &wc));
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	CHECK(!ibv_post_send(from[1]->qp, &wr, &bad));
	wc = completion(received);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 7 && wc.qp_num == to[1]->qp->qp_num);

	/* A waiting message is delivered although its sender has disconnected. */
	wr.wr_id = 1;
	CHECK(!ibv_post_send(from[1]->qp, &wr, &bad));
	while (completion(sent).wr_id != 1)
		;
	CHECK(!rdma_disconnect(from[1]));
	done(1, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!ibv_poll_cq(received, 1, &wc));
	post(srq, mr, 6);
	wc = completion(received);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 6);
	CHECK(!rdma_disconnect(to[1]));
	done(0, RDMA_CM_EVENT_DISCONNECTED);
	of = told(device);
	CHECK(of.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && of.element.qp == to[1]->qp);

	for (i = 0; i < CONNECTIONS; i++) {
		rdma_destroy_qp(from[i]);
		rdma_destroy_qp(to[i]);
		CHECK(!rdma_destroy_id(from[i]));
		CHECK(!rdma_destroy_id(to[i]));
	}
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_destroy_srq(srq));
	printf("all is well\n");
	return 0;
}
