/* Posted receives when the peer disconnects. A device that looks like InfiniBand has no close of
 * a connection: the receives stay until this end disconnects too, or a second has passed. On
 * iWARP they are flushed at once. */
#include <time.h>

#include "cm.h"

enum { POSTED = 4, LEN = 64 };

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* Returns the number of completions, at most POSTED, that come within a time. All must be
 * flushed. */
static int flushed(struct ibv_cq *cq, int tries_ms)
{
	struct ibv_wc wc;
	int count = 0;
	while (count < POSTED && tries_ms-- > 0) {
		int polled = ibv_poll_cq(cq, 1, &wc);
		if (!polled)
			usleep(1000);
		CHECK(!polled || wc.status == IBV_WC_WR_FLUSH_ERR);
		count += polled;
	}
	return count;
}

static void peer_disconnects(int port, int left, int waits)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 4, .max_recv_wr = POSTED + 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct rdma_cm_id *listener = listener_at(port), *ids[2] = { resolved_to(port) };
	char memory[LEN];
	connect_both(ids, &init);
	struct rdma_cm_id *id = ids[left];
	struct ibv_mr *mr = ibv_reg_mr(id->pd, memory, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_sge place = { (uintptr_t)memory, LEN, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &place, .num_sge = 1 }, *bad;
	for (int i = 0; i < POSTED; i++)
		CHECK(!ibv_post_recv(id->qp, &receive, &bad));
	/* The peer's last message consumes one more receive. */
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad_send;
	CHECK(!ibv_post_recv(id->qp, &receive, &bad));
	CHECK(!ibv_post_send(ids[!left]->qp, &wr, &bad_send));
	CHECK(completed(ids[!left]->send_cq).status == IBV_WC_SUCCESS);
	double began_ms = now_ms();
	CHECK(!rdma_disconnect(ids[!left]));
	int is_infiniband = looks_like_infiniband(id);
	/* The event waits for the completion to be polled, for a limited time: an application that
	 * polls both by turns gets the completion first. */
	if (is_infiniband && !waits)
		CHECK(is_quiet(left) || now_ms() - began_ms >= 100);
	if (!waits)
		CHECK(completed(id->recv_cq).status == IBV_WC_SUCCESS);
	expect(left, RDMA_CM_EVENT_DISCONNECTED);
	if (waits)
		CHECK(completed(id->recv_cq).status == IBV_WC_SUCCESS);
	if (is_infiniband)
		CHECK(flushed(id->recv_cq, 100) == 0);
	else
		CHECK(flushed(id->recv_cq, 10000) == POSTED);
	/* If this end does not disconnect, its receives are flushed after a second. */
	if (is_infiniband && waits)
		CHECK(flushed(id->recv_cq, 10000) == POSTED);
	CHECK(!rdma_disconnect(id));
	if (is_infiniband && !waits)
		CHECK(flushed(id->recv_cq, 500) == POSTED);
	expect(!left, RDMA_CM_EVENT_DISCONNECTED);
	for (int end = 0; end < 2; end++)
		rdma_destroy_qp(ids[end]);
	CHECK(!ibv_dereg_mr(mr));
	CHECK(!rdma_destroy_id(ids[ACTIVE]) && !rdma_destroy_id(ids[PASSIVE]) && !rdma_destroy_id(listener));
}

int main(int count, char **words)
{
	open_channels();
	for (int waits = 0; waits < 2; waits++) {
		peer_disconnects(atoi(words[1]), ACTIVE, waits);
		peer_disconnects(atoi(words[1]), PASSIVE, waits);
	}
	printf("all is well\n");
	return 0;
}
