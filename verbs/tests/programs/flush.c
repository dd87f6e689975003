/* rdma_disconnect flushes the posted work (rdma_disconnect(3)), and finished work stays
 * finished. Each end of a connection disconnects in turn, while the peer receives nothing. */
#include "cm.h"

/* The Writes carry far more bytes than TCP accepts at once. */
enum { LEN = 8 << 20, POSTED = 16, SMALL = 64 };

static struct ibv_mr *registered(struct rdma_cm_id *id, char *memory, size_t len)
{
	struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	return mr;
}

/* Returns the number of Writes that were flushed. */
static int disconnects(int port, int by)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = POSTED, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *listener = listener_at(port), *ids[2] = { resolved_to(port) };
	char *from = calloc(1, LEN), *to = calloc(1, LEN);
	connect_both(ids, &init);
	struct rdma_cm_id *id = ids[by], *peer = ids[!by];
	struct ibv_mr *source = registered(id, from, LEN), *sink = registered(peer, to, LEN);
	/* One message finishes first. */
	struct ibv_sge place = { (uintptr_t)to, SMALL, sink->lkey };
	struct ibv_recv_wr receive = { .wr_id = 7, .sg_list = &place, .num_sge = 1 }, *bad_receive;
	struct ibv_sge sge = { (uintptr_t)from, SMALL, source->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(peer->qp, &receive, &bad_receive));
	strcpy(from, "finished");
	/* In iWARP, the passive end may send only after it has received a message. Here either
	 * end may send first. */
	CHECK(!ibv_post_send(id->qp, &wr, &bad));
	CHECK(completed(id->send_cq).status == IBV_WC_SUCCESS);
	CHECK(completed(peer->recv_cq).status == IBV_WC_SUCCESS && !strcmp(to, "finished"));
	struct ibv_sge own = { (uintptr_t)from, SMALL, source->lkey };
	receive.sg_list = &own;
	CHECK(!ibv_post_recv(id->qp, &receive, &bad_receive));
	sge.length = LEN;
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)to;
	wr.wr.rdma.rkey = sink->rkey;
	for (wr.wr_id = 0; wr.wr_id < POSTED; wr.wr_id++)
		CHECK(!ibv_post_send(id->qp, &wr, &bad));
	CHECK(!rdma_disconnect(id));
	int flushed = 0;
	for (int i = 0; i < POSTED; i++) {
		struct ibv_wc wc = completed(id->send_cq);
		CHECK(wc.wr_id == i);
		/* After the first flushed Write, all later ones are flushed. */
		CHECK(wc.status == (flushed ? IBV_WC_WR_FLUSH_ERR : wc.status));
		CHECK(wc.status == IBV_WC_SUCCESS || wc.status == IBV_WC_WR_FLUSH_ERR);
		flushed += wc.status == IBV_WC_WR_FLUSH_ERR;
	}
	CHECK(completed(id->recv_cq).status == IBV_WC_WR_FLUSH_ERR);
	/* Work that is posted after rdma_disconnect is flushed too. */
	CHECK(!ibv_post_send(id->qp, &wr, &bad));
	CHECK(completed(id->send_cq).status == IBV_WC_WR_FLUSH_ERR);
	expect(!by, RDMA_CM_EVENT_DISCONNECTED);
	rdma_disconnect(peer);
	expect(by, RDMA_CM_EVENT_DISCONNECTED);
	for (int end = 0; end < 2; end++)
		rdma_destroy_qp(ids[end]);
	CHECK(!ibv_dereg_mr(source) && !ibv_dereg_mr(sink));
	CHECK(!rdma_destroy_id(ids[ACTIVE]) && !rdma_destroy_id(ids[PASSIVE]) && !rdma_destroy_id(listener));
	free(from);
	free(to);
	return flushed;
}

/* TCP accepts all Writes if this thread is preempted for long between the last post and
 * rdma_disconnect. Then none is flushed, and the attempt is repeated. */
static void flushes(int port, int by)
{
	int attempts = 1;
	while (!disconnects(port, by))
		CHECK(attempts++ < 5);
}

int main(int count, char **words)
{
	open_channels();
	flushes(atoi(words[1]), ACTIVE);
	flushes(atoi(words[1]), PASSIVE);
	printf("all is well\n");
	return 0;
}
