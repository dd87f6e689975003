/* Queue pairs connect without rdma_cm. One goes to RTS late and the other one never, as the
 * target of RDMA operations may stay in RTR. Until one is in RTS, neither can prove to the other
 * who it is. */
#include "cm.h"

static struct ibv_context *context;
static union ibv_gid gid;

/* The PSNs that the two ends have exchanged. */
static const uint32_t psns[2] = { 0xabcdef, 0x123456 };

static void to_rtr(struct ibv_qp *qp, struct ibv_qp *peer, uint32_t peer_psn)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num, .rq_psn = peer_psn,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh.dgid = gid },
	};
	CHECK(!ibv_modify_qp(qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

static void to_rts(struct ibv_qp *qp, uint32_t psn)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7 };
	CHECK(!ibv_modify_qp(qp, &attr,
		IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Connects two queue pairs, of which `sender` goes to RTS and sends. Number 0 is the active end:
 * its queue pair number is smaller. */
static void meet(int sender)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cqs[2];
	struct ibv_qp *qps[2];
	struct ibv_recv_wr receive = { .wr_id = 5 }, *bad_receive;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	for (int end = 0; end < 2; end++) {
		cqs[end] = ibv_create_cq(context, 4, NULL, NULL, 0);
		struct ibv_qp_init_attr init = {
			.send_cq = cqs[end], .recv_cq = cqs[end], .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 },
		};
		CHECK((qps[end] = ibv_create_qp(pd, &init)));
	}
	CHECK(qps[0]->qp_num < qps[1]->qp_num);
	for (int end = 0; end < 2; end++)
		to_rtr(qps[end], qps[!end], psns[!end]);
	CHECK(!ibv_post_recv(qps[!sender], &receive, &bad_receive));
	/* Time for attempts that fail, because no end can prove who it is. */
	usleep(200000);
	alarm(15);
	to_rts(qps[sender], psns[sender]);
	CHECK(!ibv_post_send(qps[sender], &send, &bad));
	CHECK(completed(cqs[sender]).status == IBV_WC_SUCCESS);
	struct ibv_wc wc = completed(cqs[!sender]);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
	alarm(0);
	for (int end = 0; end < 2; end++)
		CHECK(!ibv_destroy_qp(qps[end]) && !ibv_destroy_cq(cqs[end]));
	CHECK(!ibv_dealloc_pd(pd));
}

int main(void)
{
	int count;
	CHECK((context = ibv_open_device(*ibv_get_device_list(&count))));
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	for (int sender = 0; sender < 2; sender++)
		meet(sender);
	CHECK(!ibv_close_device(context));
	printf("all is well\n");
	return 0;
}
