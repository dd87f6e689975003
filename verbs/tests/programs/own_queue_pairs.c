/* Connects queue pairs that the application makes by ibv_create_qp. The application brings them
 * to each state with the attributes of rdma_init_qp_attr, and calls rdma_establish at the end. */
#include "cm.h"

static struct ibv_pd *pd;
static struct ibv_cq *cq;

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	return qp;
}

/* Works as applications do, which pass on what rdma_init_qp_attr sets: it must set each field of
 * its mask, because all other bytes are 0xaa. */
static void bring_to(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr, now;
	struct ibv_qp_init_attr init;
	int mask;
	memset(&attr, 0xaa, sizeof(attr));
	attr.qp_state = state;
	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	CHECK((mask & IBV_QP_STATE) && attr.qp_state == state);
	if (state == IBV_QPS_INIT) {
		CHECK(mask & IBV_QP_ACCESS_FLAGS);
		CHECK(attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE);
		CHECK(attr.qp_access_flags & IBV_ACCESS_REMOTE_READ);
	}
	if (state == IBV_QPS_RTR && looks_like_infiniband(id)) {
		CHECK(mask & IBV_QP_AV && mask & IBV_QP_DEST_QPN && mask & IBV_QP_RQ_PSN);
		CHECK(attr.ah_attr.is_global && attr.ah_attr.port_num == id->port_num);
		CHECK(attr.path_mtu == IBV_MTU_4096 && attr.dest_qp_num && attr.rq_psn < 1 << 24);
		CHECK(attr.max_dest_rd_atomic == 3);
		/* 127.0.0.1 as an IPv4-mapped IPv6 address. */
		CHECK(attr.ah_attr.grh.dgid.raw[11] == 0xff && attr.ah_attr.grh.dgid.raw[12] == 127);
	}
	if (state == IBV_QPS_RTS && looks_like_infiniband(id))
		CHECK(attr.max_rd_atomic >= 2 && attr.timeout);
	CHECK(!ibv_modify_qp(qp, &attr, mask));
	CHECK(!ibv_query_qp(qp, &now, IBV_QP_STATE, &init));
	CHECK(now.qp_state == state && qp->state == state);
}

static void post_receive(struct ibv_qp *qp)
{
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void complete(void)
{
	struct ibv_wc wc;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		;
	CHECK(found == 1 && wc.status == IBV_WC_SUCCESS);
}

/* Waits for a flushed completion of `qp`. Completions of its peer may come before: the peer's
 * receives are flushed when it finds that the connection closes. */
static void flushed(struct ibv_qp *qp)
{
	struct ibv_wc wc = { 0 };
	while (wc.qp_num != qp->qp_num)
		CHECK(ibv_poll_cq(cq, 1, &wc) >= 0);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
}

static void ping(struct ibv_qp *from)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(!ibv_post_send(from, &wr, &bad));
	/* One completion of the Send, and one of its receive. */
	complete();
	complete();
}

/* Connects two queue pairs of the application's own. */
static void both_ends(struct rdma_cm_id *listener, int port)
{
	struct rdma_conn_param param = {
		.responder_resources = 3, .initiator_depth = 2, .private_data = "hello", .private_data_len = 6,
	};
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	int mask;
	struct rdma_cm_id *active = resolved_to(port);
	pd = ibv_alloc_pd(active->verbs);
	cq = ibv_create_cq(active->verbs, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	FAILS(rdma_connect(active, NULL), EINVAL);
	FAILS(rdma_establish(active), EINVAL);
	struct ibv_qp *qp = make();
	param.qp_num = qp->qp_num;
	CHECK(!rdma_connect(active, &param));

	struct told told = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *passive = told.event.id;
	CHECK(!strcmp(told.private_data, "hello") && told.event.listen_id == listener);
	CHECK(told.event.param.conn.initiator_depth == 3);
	CHECK(told.event.param.conn.responder_resources == 2);
	CHECK(!looks_like_infiniband(active) == !told.event.param.conn.qp_num);
	/* The peer has not answered yet, so the number of its queue pair is unknown. */
	if (looks_like_infiniband(active))
		FAILS(rdma_init_qp_attr(active, &attr, &mask), EINVAL);
	struct ibv_qp *other = make();
	param.qp_num = other->qp_num;
	/* The application brings the passive end to RTS before it accepts. */
	param.responder_resources = 2;
	param.initiator_depth = 3;
	FAILS(rdma_accept(passive, NULL), EINVAL);
	struct ibv_qp_attr first = { .qp_state = IBV_QPS_INIT };
	CHECK(!rdma_init_qp_attr(passive, &first, &mask) && !ibv_modify_qp(other, &first, mask));
	first.qp_state = IBV_QPS_RTR;
	CHECK(!rdma_init_qp_attr(passive, &first, &mask) && !ibv_modify_qp(other, &first, mask));
	first.qp_state = IBV_QPS_RTS;
	CHECK(!rdma_init_qp_attr(passive, &first, &mask) && !ibv_modify_qp(other, &first, mask));
	post_receive(other);
	CHECK(!rdma_accept(passive, &param));

	told = expect(ACTIVE, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(told.event.id == active && !strcmp(told.private_data, "hello"));
	CHECK(!looks_like_infiniband(active) == !told.event.param.conn.qp_num);
	/* The active end is not in RTS yet, although the connection is made. */
	CHECK(qp->state == IBV_QPS_RESET && ibv_post_send(qp, &wr, &bad) == EINVAL);
	bring_to(active, qp, IBV_QPS_INIT);
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL);
	post_receive(qp);
	bring_to(active, qp, IBV_QPS_RTR);
	bring_to(active, qp, IBV_QPS_RTS);
	CHECK(!rdma_establish(active));
	FAILS(rdma_establish(active), EINVAL);
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(is_quiet(ACTIVE));
	ping(qp);
	ping(other);

	CHECK(!rdma_disconnect(active));
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_disconnect(passive));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(other));
	CHECK(!rdma_destroy_id(active) && !rdma_destroy_id(passive));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

/* Connects with numbers that name no queue pair: the ends exchange private data only. */
static void no_queue_pairs(int port)
{
	struct rdma_conn_param param = { .qp_num = 0x123, .private_data = "mine", .private_data_len = 5 };
	struct rdma_cm_id *active = resolved_to(port);
	CHECK(!rdma_connect(active, &param));
	struct told told = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!strcmp(told.private_data, "mine"));
	struct rdma_cm_id *passive = told.event.id;
	param.private_data = "ours";
	CHECK(!rdma_accept(passive, &param));
	told = expect(ACTIVE, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(!strcmp(told.private_data, "ours"));
	CHECK(!rdma_establish(active));
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(passive));
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_destroy_id(active) && !rdma_destroy_id(passive));
}

/* Brings a queue pair to the error state: its posted work is flushed, and what it has sent is
 * delivered. */
static void error_state(int port)
{
	struct rdma_conn_param param = { .responder_resources = 3, .initiator_depth = 3 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
	struct rdma_cm_id *active = resolved_to(port);
	pd = ibv_alloc_pd(active->verbs);
	cq = ibv_create_cq(active->verbs, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make(), *other = make();
	param.qp_num = qp->qp_num;
	CHECK(!rdma_connect(active, &param));
	struct rdma_cm_id *passive = expect(PASSIVE, RDMA_CM_EVENT_CONNECT_REQUEST).event.id;
	param.qp_num = other->qp_num;
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++)
		bring_to(passive, other, state);
	post_receive(other);
	CHECK(!rdma_accept(passive, &param));
	expect(ACTIVE, RDMA_CM_EVENT_CONNECT_RESPONSE);
	for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++)
		bring_to(active, qp, state);
	CHECK(!rdma_establish(active));
	expect(PASSIVE, RDMA_CM_EVENT_ESTABLISHED);
	ping(qp);
	post_receive(qp);
	post_receive(other);
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && qp->state == IBV_QPS_ERR);
	flushed(qp);
	CHECK(!ibv_post_send(qp, &wr, &bad));
	flushed(qp);
	CHECK(!rdma_disconnect(active));
	expect(ACTIVE, RDMA_CM_EVENT_DISCONNECTED);
	expect(PASSIVE, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(other));
	CHECK(!rdma_destroy_id(active) && !rdma_destroy_id(passive));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

int main(int count, char **words)
{
	int port = atoi(words[1]);
	open_channels();
	struct rdma_cm_id *listener = listener_at(port);
	both_ends(listener, port);
	no_queue_pairs(port);
	error_state(port);
	CHECK(!rdma_destroy_id(listener));
	printf("all is well\n");
	return 0;
}
